"""What is written after `--`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigurationError
from appliance.launch.options import Options, read_options, settle

ADVICE = "options start with a dash, the model goes into --model"


def read(*words: str) -> list[tuple[str, Any]]:
    return [(".".join((item.spec.name, *item.path)), item.value) for item in read_options(words, "vllm options")]


def put_in_order(*words: str) -> Options:
    return settle(read_options(words, "vllm options"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--max-model-len", "4096"), [("max_model_len", 4096)]),
        (("--max_model_len=4096",), [("max_model_len", 4096)]),
        (("--max-model-len", "-1"), [("max_model_len", -1)]),
        (("-tp", "4"), [("tensor_parallel_size", 4)]),
        (("-tp=4",), [("tensor_parallel_size", 4)]),
        (("-q", "fp8"), [("quantization", "fp8")]),
        (("-O3",), [("optimization_level", "3")]),
        (("-O=3",), [("optimization_level", "3")]),
        (("-O", "3"), [("optimization_level", "3")]),
        (("--enforce-eager",), [("enforce_eager", True)]),
        (("--no-enforce-eager",), [("enforce_eager", False)]),
        (("--no_enforce_eager",), [("enforce_eager", False)]),
        (("--aggregate-engine-logging",), [("aggregate_engine_logging", True)]),
        (("-ep",), [("enable_expert_parallel", True)]),
        (("--compilation-config", '{"mode": 3}'), [("compilation_config", {"mode": 3})]),
        (('--compilation-config={"a": "b=c"}',), [("compilation_config", {"a": "b=c"})]),
        (("--compilation-config.mode", "3"), [("compilation_config.mode", 3)]),
        (("--compilation_config.pass_config.x=true",), [("compilation_config.pass_config.x", True)]),
        (("-cc.cudagraph_mode", "NONE"), [("compilation_config.cudagraph_mode", "NONE")]),
        (("-sc.num_speculative_tokens", "5"), [("speculative_config.num_speculative_tokens", 5)]),
        (("--compilation-config.splitting_ops+", "a,b"), [("compilation_config.splitting_ops", ["a", "b"])]),
        (("--cudagraph-capture-sizes", "1", "2", "--seed", "7"), [("cudagraph_capture_sizes", [1, 2]), ("seed", 7)]),
        (("--middleware", "a.B", "--middleware", "c.D"), [("middleware", ["a.B"]), ("middleware", ["c.D"])]),
        (("--speculative-config", "None"), [("speculative_config", None)]),
    ],
)  # fmt: skip
def test_every_form_that_vllm_takes(words: tuple[str, ...], expected: list[tuple[str, Any]]) -> None:
    assert read(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-modle-len", "1"), 'vLLM 0.19.1 has no option "--max-modle-len"; did you mean "--max-model-len"?'),
        (("--max-model", "1"), 'vLLM 0.19.1 has no option "--max-model"; did you mean "--max-model-len"?'),
        (("-tpp", "1"), 'vLLM 0.19.1 has no option "-tpp"; did you mean "-tp"?'),
        (("--no-max-model-len",), 'vLLM 0.19.1 has no option "--no-max-model-len"; did you mean "--max-model-len"?'),
        (("--max-model-len",), "--max-model-len wants a value and got none"),
        (("--max-model-len", "--seed", "1"), "--max-model-len wants a value and got none"),
        (("--max-model-len", "4k", "8k"), f'"8k" belongs to no option; {ADVICE}'),
        (("/models/x",), f'"/models/x" belongs to no option; {ADVICE}'),
        (("--",), f'"--" belongs to no option; {ADVICE}'),
        (("--enforce-eager=1",), '--enforce-eager takes no value; "--enforce-eager=1" gives one'),
        (("--seed.x", "1"), '"--seed.x" sets a key of --seed, which has no keys'),
        (("--kernel-config.", "1"), '"--kernel-config." sets a key of --kernel-config, which has no keys'),
        (("--seed", "x"), '--seed is "x"; wanted a whole number'),
    ],
)  # fmt: skip
def test_what_vllm_would_refuse_is_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError) as said:
        read(*words)
    assert str(said.value) == f"vllm options: {message}"


def test_of_two_the_last_counts_and_is_told() -> None:
    found = put_in_order("-tp", "4", "--seed", "1", "--tensor-parallel-size=2")
    assert found.whole == {"tensor_parallel_size": 2, "seed": 1}
    assert found.tokens["tensor_parallel_size"] == ("--tensor-parallel-size=2",)
    assert found.repeated == ("tensor_parallel_size",)


def test_both_polarities_are_the_same_argument() -> None:
    found = put_in_order("--enforce-eager", "--no-enforce-eager")
    assert (found.whole, found.tokens) == ({"enforce_eager": False}, {"enforce_eager": ("--no-enforce-eager",)})


def test_keys_of_one_argument_come_together() -> None:
    found = put_in_order("-cc.pass_config.a", "1", "--compilation-config.pass_config.b=2", "-cc.mode", "3")
    assert found.keys == {"compilation_config": {"pass_config": {"a": 1, "b": 2}, "mode": 3}}
    assert found.whole == {}


def test_repeatable_options_add_up() -> None:
    found = put_in_order("--middleware", "a.B", "--middleware=c.D")
    assert found.whole["middleware"] == ["a.B", "c.D"]
    assert found.repeated == ()


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--seed", "-tp", "--compilation-config.x+", "="]), max_size=6))
def test_any_words_are_options_or_one_line(words: list[str]) -> None:
    said = "vllm options: "
    try:
        put_in_order(*words)
    except ConfigurationError as error:
        said = str(error)
    assert said.startswith("vllm options: ")
    assert said.isprintable()
