"""The whole decode step and the prefill of a profile, predicted from kernels, library and bounds.

A step with a part of which no kernel is predicted takes at least as long as told, and its rate is at most as high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.bench import predict_published
from appliance.bench.predict_subject import workload
from appliance.errors import ConfigurationError
from sm70_kernels.predict.parts import Part, chunk_shape, decode_shape, decode_step, prefill_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.bench.predict_published import Published
    from appliance.bench.predict_subject import Subject
    from sm70_kernels.predict.parts import Kernels

    Model = Callable[[int, int], Kernels]
    """The kernels' model for so many rows, of which so many are sampled from (at least one)."""

CONTEXTS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)
CONCURRENCIES = (1, 2, 4, 8, 16, 32)
"""What is predicted where nobody says for what; of them, what the profile allows."""

LACKS = (
    "embedding and sampling",
    "what the engine does between steps",
    "work that a kernel of the parts bounded here does besides its bytes and products",
    "prompts and decoding in one step",
    "the vision tower",
)
"""What no figure here contains."""


@dataclass(frozen=True)
class Step:
    """A decode step of `concurrency` requests that are `context` tokens long. `published` are the same by others."""

    context: int
    concurrency: int
    rows: int
    parts: tuple[Part, ...]
    published: tuple[Published, ...]

    @property
    def ms(self) -> float:
        """Of all parts; at least that."""
        return sum(part.ms for part in self.parts)

    def tokens_per_s(self, accepted: float) -> float:
        """Of all requests together, at most, when a round gives `accepted` tokens to each; 1 without a draft."""
        return 1e3 * self.concurrency * accepted / self.ms


@dataclass(frozen=True)
class Prompt:
    """The prefill of one prompt of `context` tokens, alone, nothing of it cached, in so many chunks."""

    context: int
    chunks: int
    parts: tuple[Part, ...]
    published: tuple[Published, ...]

    @property
    def ms(self) -> float:
        """Of all parts; at least that."""
        return sum(part.ms for part in self.parts)

    @property
    def tokens_per_s(self) -> float:
        """At most."""
        return 1e3 * self.context / self.ms


def contexts(subject: Subject, asked: Sequence[int] | None, *, prompts: bool = False) -> tuple[int, ...]:
    """Return for which to predict decode steps, or `prompts`: where nobody asks, also those that others measured.

    Raises ConfigurationError for more than the profile allows.
    """
    every = predict_published.of(subject)
    told = {each.context for each in every if (each.prefill_tokens_per_s if prompts else each.step_ms)}
    return _within(asked, sorted({*CONTEXTS, *told}), subject.longest, "--context", f"{subject.name}'s max_model_len")


def concurrencies(subject: Subject, asked: Sequence[int] | None) -> tuple[int, ...]:
    """Return for how many requests at once to predict. Raises ConfigurationError for more than the profile allows."""
    return _within(asked, CONCURRENCIES, subject.most_requests, "--concurrency", f"{subject.name}'s max_num_seqs")


def chunks(context: int, budget: int) -> list[tuple[int, int]]:
    """Return where each chunk of a prompt begins, and its tokens."""
    return [(before, min(budget, context - before)) for before in range(0, context, budget)]


def rows_wanted(subject: Subject, prompts: Sequence[int], concurrencies: Sequence[int]) -> list[tuple[int, int]]:
    """Return for what rows and logits the kernels' model will be asked."""
    decoding = [(rows, rows) for rows in (each * (1 + subject.drafted) for each in concurrencies)]
    prefilling = [(tokens, 1) for context in prompts for _, tokens in chunks(context, subject.budget)]
    return list(dict.fromkeys([*decoding, *prefilling]))


def decode(subject: Subject, context: int, concurrency: int, model: Model) -> Step:
    """Return a decode step, or a round where a draft is checked."""
    shape = decode_shape(context, concurrency, subject.drafted)
    parts = decode_step(workload(subject), shape, model(shape.rows, shape.rows))
    told = [each for each in _told(subject, context, concurrency) if each.step_ms]
    return Step(context, concurrency, shape.rows, parts, tuple(told))


def prefill(subject: Subject, context: int, model: Model) -> Prompt:
    """Return the prefill of one prompt, in chunks of the profile's budget."""
    parts: list[Part] = []
    every, served = chunks(context, subject.budget), workload(subject)
    for before, tokens in every:
        shape = chunk_shape(before, tokens, last=before + tokens == context)
        parts += prefill_chunk(served, shape, model(tokens, 1))
    told = tuple(each for each in _told(subject, context, 1) if each.prefill_tokens_per_s)
    return Prompt(context, len(every), tuple(_summed(parts)), told)


def _summed(parts: Sequence[Part]) -> Iterator[Part]:
    for name, basis in dict.fromkeys((part.name, part.basis) for part in parts):
        same = [part for part in parts if (part.name, part.basis) == (name, basis)]
        yield Part(name, basis, sum(part.launches for part in same), sum(part.ms for part in same))


def _told(subject: Subject, context: int, concurrency: int) -> list[Published]:
    every = predict_published.of(subject)
    return [each for each in every if (each.context, each.concurrency) == (context, concurrency)]


def _within(asked: Sequence[int] | None, known: Sequence[int], most: int, option: str, limit: str) -> tuple[int, ...]:
    for each in asked or ():
        if not 1 <= each <= most:
            raise ConfigurationError(f"{option} {each}: {limit} is {most}; ask for 1 to {most}")
    return tuple(dict.fromkeys(asked)) if asked else tuple(each for each in known if each <= most)
