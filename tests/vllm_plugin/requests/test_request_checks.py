"""What is refused before the engine's core sees it, on vLLM's own parameters."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

VOCABULARY = 100


def parameters(**asked: Any) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    structure = asked.pop("structure", None)
    if structure is not None:
        structure = StructuredOutputsParams(**structure)
        structure._backend = "xgrammar"
    return SamplingParams(**asked, structured_outputs=structure)


NOT = {"type": "integer", "not": {"const": 1}}


@pytest.mark.parametrize(
    ("asked", "parameter", "text"),
    [
        ({"stop_token_ids": [5, 100], "min_tokens": 1}, "stop_token_ids", "token id 100 is not in the vocabulary"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1 is not in the vocabulary; wanted 0 to 99"),
        ({"stop_token_ids": [1] * 5000}, "stop_token_ids", "5000 token ids; 100 at most"),
        ({"allowed_token_ids": [99, 4000]}, "allowed_token_ids", "token id 4000"),
        ({"stop": ["a"] * 5000}, "stop", "5000 entries"),
        ({"temperature": float("nan")}, "temperature", "nan is no finite number"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty", "inf is no finite number"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias", "nan for token 3"),
        ({"structure": {"json": NOT}}, "structured_outputs", '"not" (at #)'),
        ({"structure": {"json": json.dumps(NOT)}}, "structured_outputs", '"not" (at #)'),
        (
            {"structure": {"structural_tag": json.dumps({"structures": [{"begin": "a", "schema": NOT, "end": "b"}]})}},
            "structured_outputs",
            '"not" (at #)',
        ),
        (
            {"structure": {"structural_tag": json.dumps({"format": {"type": "tag", "content": {"json_schema": NOT}}})}},
            "structured_outputs",
            '"not" (at #)',
        ),
    ],
    ids=str,
)
def test_what_the_engine_would_fail_at_is_named(asked: dict[str, Any], parameter: str, text: str) -> None:
    from appliance.vllm_plugin.requests.checks import misfit

    found = misfit(parameters(**asked), VOCABULARY)
    assert found is not None
    assert found[0] == parameter
    assert text in found[1]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"stop_token_ids": [0, 99], "min_tokens": 1, "logit_bias": {3: -5.0}, "temperature": 0.0, "stop": ["a"]},
        {"structure": {"json": {"type": "integer", "minimum": 1}}},
        {"structure": {"regex": "a+"}},
    ],
    ids=str,
)
def test_what_it_serves_passes(asked: dict[str, Any]) -> None:
    from appliance.vllm_plugin.requests.checks import misfit

    assert misfit(parameters(**asked), VOCABULARY) is None


def test_both_of_vllms_checks_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor

    from appliance.vllm_plugin.requests import checks

    for owner, name in ((SamplingParams, "verify"), (InputProcessor, "_validate_model_input")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    checks.install()
    model = SimpleNamespace(
        get_vocab_size=lambda: VOCABULARY, max_logprobs=20, logits_processors=None, max_model_len=50, runner_type="x"
    )
    parameters(stop_token_ids=[99]).verify(model, None, None, None)
    with pytest.raises(VLLMValidationError, match="token id 100 is not in the vocabulary"):
        parameters(stop_token_ids=[100]).verify(model, None, None, None)
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    structures = SimpleNamespace(backend="xgrammar")
    with pytest.raises(VLLMValidationError, match="structured_outputs: nested too deeply"):
        parameters(structure={"json": deep}).verify(model, None, structures, SimpleNamespace())
    processor = SimpleNamespace(
        model_config=model, tokenizer=SimpleNamespace(max_token_id=200), _validate_prompt_len=lambda *_: None
    )
    for ids, text in (([-1, 5], "token id -1"), ([150], "token id 150"), ([201], "out of vocabulary")):
        with pytest.raises(ValueError, match=text):
            InputProcessor._validate_model_input(processor, {"type": "token", "prompt_token_ids": ids}, "decoder")
    InputProcessor._validate_model_input(processor, {"type": "token", "prompt_token_ids": [5]}, "decoder")
