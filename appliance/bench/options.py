"""The options that the measuring verbs share: the load, the sampling, and where the results go."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    from appliance.bench.prompts import Local

LONGEST = 262144
"""Tokens of the longest context that any profile serves."""

SAMPLING: dict[str, tuple[type, str]] = {
    "temperature": (float, "0 is greedy"),
    "top_p": (float, "probability mass that is drawn from"),
    "top_k": (int, "tokens that are drawn from; -1 for all"),
    "min_p": (float, "least probability, as a share of the likeliest token's"),
    "presence_penalty": (float, "penalty for a token that occurred"),
    "frequency_penalty": (float, "penalty for each time that a token occurred"),
    "repetition_penalty": (float, "factor on tokens of prompt and answer"),
    "min_tokens": (int, "tokens before the end of text is allowed"),
}
"""By the API's names; an option each. What else the API has goes in by --extra-body."""


@dataclass(frozen=True)
class Load:
    """One workload: `requests` in all and for each repeat, at most `concurrency` of them at a time."""

    input_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    repeats: int
    seed: int
    sampling: dict[str, Any]
    cached: bool
    """Whether each prompt is sent once, uncounted, before it is measured."""

    @property
    def short(self) -> Load:
        """The same for a warm-up, which ends early and has no least number of tokens."""
        return replace(self, sampling={name: value for name, value in self.sampling.items() if name != "min_tokens"})

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.input_tokens}x{self.output_tokens}-c{self.concurrency}"


def configure_load(parser: argparse.ArgumentParser, *, input_len: str, output_len: int, concurrency: str) -> None:
    """Add the options of the load; several lengths or concurrencies make a result each."""
    group = parser.add_argument_group("load")
    group.add_argument("--input-len", default=input_len, metavar="N[,N]", help=f"prompt tokens (default {input_len})")
    group.add_argument("--output-len", default=str(output_len), metavar="N", help=f"output tokens ({output_len})")
    group.add_argument("--concurrency", default=concurrency, metavar="N[,N]", help=f"at a time ({concurrency})")
    group.add_argument("--repeats", default="2", metavar="N", help="how often it is measured (2)")
    group.add_argument("--seed", default="1234", metavar="N", help="of the prompts (1234)")
    group.add_argument("--cached", action="store_true", help="send every prompt once before it is measured")
    group.add_argument(
        "--timeout", default="1800", metavar="S", help="silence after which a request is given up (1800)"
    )
    group.add_argument("--tokenizer", metavar="DIR", help="folder with tokenizer.json (default: the engine is asked)")


def configure_sampling(parser: argparse.ArgumentParser) -> None:
    """Add an option for each sampling parameter."""
    group = parser.add_argument_group("sampling", "as the API names it; greedy when nothing is given")
    for name, (kind, text) in SAMPLING.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    group.add_argument("--sampling-seed", type=int, metavar="N", help="the API's `seed`")
    group.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="run to --output-len")
    group.add_argument("--extra-body", metavar="JSON", help="more keys of the request's body, as a JSON object")


def configure_output(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where results go."""
    group = parser.add_argument_group("output")
    group.add_argument("--out", type=Path, metavar="DIR", help="folder for the results in JSON, report.md, report.html")
    group.add_argument("--json", action="store_true", help="print the results in JSON instead of Markdown")
    group.add_argument("--title", metavar="TEXT", help="what the results are called")
    group.add_argument("--image", metavar="NAME", help="container image of the engine, which cannot see its own name")
    group.add_argument("--quiet", action="store_true", help="show no progress")


def loads(arguments: argparse.Namespace, *, requests: str | None = None) -> list[Load]:
    """Return the loads in the order measured. Raises ConfigurationError for a value of the wrong kind."""
    sampling = sampling_of(arguments)
    output = whole("--output-len", arguments.output_len, 1, LONGEST)
    repeats = whole("--repeats", arguments.repeats, 1, 1000)
    seed = whole("--seed", arguments.seed, 0, 2**32 - 1)
    found = []
    for length in several("--input-len", arguments.input_len, LONGEST):
        for concurrency in several("--concurrency", arguments.concurrency, 4096):
            number = concurrency if requests is None else whole("--requests", requests, 1, 1_000_000)
            found.append(
                Load(length, output, min(concurrency, number), number, repeats, seed, sampling, arguments.cached)
            )
    return found


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters by the API's names. Raises ConfigurationError for an --extra-body that is none."""
    given = {name: getattr(arguments, name) for name in SAMPLING if getattr(arguments, name) is not None}
    if arguments.sampling_seed is not None:
        given["seed"] = arguments.sampling_seed
    extra: Any = {}
    if arguments.extra_body is not None:
        try:
            extra = json.loads(arguments.extra_body)
        except ValueError as error:
            raise ConfigurationError(f"--extra-body is no JSON ({error}); wanted an object such as {{}}") from None
        if not isinstance(extra, dict):
            raise ConfigurationError(f"--extra-body is {arguments.extra_body}; wanted a JSON object")
        taken = sorted(
            extra.keys() & {"model", "prompt", "messages", "stream", "stream_options", "return_token_ids", "n"}
        )
        if taken:
            raise ConfigurationError(f"--extra-body sets {', '.join(taken)}, which the benchmark sets itself")
    return {"temperature": 0.0, **given, "ignore_eos": arguments.ignore_eos, **extra}


def told(sampling: dict[str, Any]) -> dict[str, bool | int | float | str]:
    """Return sampling parameters as a result tells them: what is no plain value, as JSON."""
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value, sort_keys=True)
        for name, value in sampling.items()
    }


def several(option: str, text: str, most: int) -> list[int]:
    """Return whole numbers separated by commas."""
    return [whole(option, part, 1, most) for part in text.split(",")]


def whole(option: str, text: str, least: int, most: int) -> int:
    """Return a whole number within bounds. Raises ConfigurationError for anything else."""
    if not (text.isascii() and text.strip().isdigit() and least <= int(text) <= most):
        raise ConfigurationError(f'{option} is "{text}"; wanted a whole number from {least} to {most}')
    return int(text)


def seconds(option: str, text: str) -> float:
    """Return a positive number of seconds. Raises ConfigurationError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ConfigurationError(f'{option} is "{text}"; wanted seconds, more than 0')
    return value


def tokenizer(arguments: argparse.Namespace) -> Local | None:
    """Return the tokenizer of --tokenizer, None where the engine is asked."""
    if arguments.tokenizer is None:
        return None
    from appliance.bench.prompts import Local

    return Local(Path(arguments.tokenizer))
