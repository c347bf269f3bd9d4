"""What vLLM 0.19.1 accepts of a client's request and the engine's core then fails at, or ignores. Refused with 400.

vLLM checks a request's parameters in one place for every endpoint, `SamplingParams.verify`, and its prompt in another,
`InputProcessor._validate_model_input`, both in the API server's process. It has no hook there that a speculating engine
keeps (it refuses logits processors), so `install` wraps the two.
"""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any

from appliance.vllm_plugin.requests.schema_keywords import unenforced

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_WORDS = 4096
"""Of a list of words in one request; each is looked for in every step."""

FINITE = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def misfit(params: Any, vocabulary: int) -> tuple[str, str] | None:  # noqa: ANN401 - vLLM's SamplingParams
    """Return the parameter that the engine cannot serve and why, None where all is well.

    `params` have passed vLLM's own check, which chooses the grammar's library; `vocabulary` is the model's.
    """
    for name in ("stop_token_ids", "allowed_token_ids"):
        ids = getattr(params, name, None) or ()
        if len(ids) > vocabulary:
            return name, f"{len(ids)} token ids; {vocabulary} at most"
        if found := outside(ids, vocabulary):
            return name, found
    for name in ("stop", "bad_words"):
        words = getattr(params, name, None) or ()
        if len(words) > MOST_WORDS:
            return name, f"{len(words)} entries; {MOST_WORDS} at most"
    for name in FINITE:
        value = getattr(params, name, None)
        if value is not None and not math.isfinite(value):
            return name, f"{value} is no finite number"
    for token, bias in (params.logit_bias or {}).items():
        if not math.isfinite(bias):
            return "logit_bias", f"{bias} for token {token} is no finite number"
    return _structure(params.structured_outputs)


def outside(ids: Sequence[int], vocabulary: int) -> str | None:
    """Say which of `ids` is no token of the model. A negative one would count from the end, and mean another token."""
    if not ids or (min(ids) >= 0 and max(ids) < vocabulary):
        return None
    wrong = next(each for each in ids if not 0 <= each < vocabulary)
    return f"token id {wrong} is not in the vocabulary; wanted 0 to {vocabulary - 1}"


def _structure(asked: Any) -> tuple[str, str] | None:  # noqa: ANN401 - vLLM's StructuredOutputsParams
    if asked is None or getattr(asked, "_backend", None) != "xgrammar":
        return None
    for schema in _schemas(asked):
        if found := unenforced(schema):
            return "structured_outputs", f"the JSON schema has {found}, which answers are not held to"
    return None


def _schemas(asked: Any) -> list[object]:  # noqa: ANN401
    if asked.json is not None:
        return [json.loads(asked.json) if isinstance(asked.json, str) else asked.json]
    if asked.structural_tag is not None:
        return _tagged(json.loads(asked.structural_tag))
    return []


def _tagged(tag: object) -> list[object]:
    """Return the schemas in a structural tag, in either of its forms."""
    if isinstance(tag, list):
        return [schema for each in tag for schema in _tagged(each)]
    if not isinstance(tag, dict):
        return []
    own = [tag[name] for name in ("schema", "json_schema") if isinstance(tag.get(name), dict)]
    return own + [
        schema for name, each in tag.items() if name not in ("schema", "json_schema") for schema in _tagged(each)
    ]


def install() -> None:
    """Let the API server of this process refuse what `misfit` finds, whatever the endpoint."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor

    verify = SamplingParams.verify

    @functools.wraps(verify)
    def checked(self: Any, model_config: Any, *others: Any, **named: Any) -> None:  # noqa: ANN401 - vLLM's own
        try:
            verify(self, model_config, *others, **named)
            found = misfit(self, model_config.get_vocab_size())
        except RecursionError:
            # Both walk through what the client sent.
            found = "structured_outputs", "nested too deeply"
        if found:
            raise VLLMValidationError(f"{found[0]}: {found[1]}.", parameter=found[0])

    validate = InputProcessor._validate_model_input

    @functools.wraps(validate)
    def validated(self: Any, prompt_input: Any, *others: Any, **named: Any) -> None:  # noqa: ANN401 - vLLM's own
        validate(self, prompt_input, *others, **named)
        # vLLM looks at the greatest alone, and holds it against the tokenizer, which may know more than the model.
        ids = prompt_input.get("prompt_token_ids") or ()
        if found := outside(ids, self.model_config.get_vocab_size()):
            raise VLLMValidationError(f"prompt: {found}.", parameter="prompt")

    SamplingParams.verify = checked
    InputProcessor._validate_model_input = validated
