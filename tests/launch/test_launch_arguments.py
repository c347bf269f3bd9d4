"""vLLM's argument table, and values by it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigurationError
from appliance.launch import arguments, options
from appliance.paths import ROOT

SOURCE = "somewhere"


def value(name: str, raw: object) -> Any:
    return arguments.parse(arguments.find(name, SOURCE), raw, SOURCE)


def test_the_table_is_of_the_release_that_is_pinned() -> None:
    assert json.loads(arguments.TABLE.read_text())["vllm"] == arguments.VLLM
    assert f'"vllm=={arguments.VLLM}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("max_model_len", "4096", 4096),
        ("max-model-len", 4096, 4096),
        ("max_model_len", "32k", 32_000),
        ("max_model_len", "32K", 32_768),
        ("max_model_len", "25.6k", 25_600),
        ("max_model_len", "auto", "auto"),
        ("max_model_len", -1, -1),
        ("gpu_memory_utilization", "0.86", 0.86),
        ("gpu_memory_utilization", 1, 1.0),
        ("enable_prefix_caching", "off", False),
        ("enable_prefix_caching", True, True),
        ("enforce_eager", "1", True),
        ("optimization_level", 2, "2"),
        ("kv_cache_dtype", "fp8_e4m3", "fp8_e4m3"),
        ("cudagraph_capture_sizes", "1,2,4", [1, 2, 4]),
        ("cudagraph_capture_sizes", "[1, 2]", [1, 2]),
        ("cudagraph_capture_sizes", [1, 8], [1, 8]),
        ("cudagraph_capture_sizes", 8, [8]),
        ("compilation_config", '{"mode": 3}', {"mode": 3}),
        ("compilation_config", {"mode": 3}, {"mode": 3}),
        ("compilation_config", "3", 3),
        ("hf_overrides", "some.module:function", "some.module:function"),
        ("speculative_config", "None", None),
        ("speculative_config", None, None),
        ("block_size", None, None),
        ("max_lora_rank", "16", 16),
    ],
)
def test_values_of_the_right_kind(name: str, raw: object, expected: object) -> None:
    assert value(name, raw) == expected


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("max_model_len", "many", '--max-model-len is "many"; wanted a whole number such as 32768, 32k or 32K or auto'),
        ("max_model_len", "1.5K", '--max-model-len is "1.5K"; wanted a whole number such as 32768, 32k or 32K or auto'),
        ("block_size", "16k", '--block-size is "16k"; wanted a whole number'),
        ("block_size", 16.0, '--block-size is "16.0"; wanted a whole number'),
        ("block_size", True, '--block-size is "true"; wanted a whole number'),
        ("gpu_memory_utilization", "most", '--gpu-memory-utilization is "most"; wanted a number'),
        ("gpu_memory_utilization", True, '--gpu-memory-utilization is "true"; wanted a number'),
        ("enforce_eager", "maybe", '--enforce-eager is "maybe"; wanted true or false'),
        ("enforce_eager", 2, '--enforce-eager is "2"; wanted true or false'),
        ("compilation_config", "{mode", '--compilation-config is "{mode"; wanted JSON'),
        ("hf_overrides", "{mode", '--hf-overrides is "{mode"; wanted JSON'),
        ("tokenizer", ["a"], '--tokenizer is "["a"]"; wanted text'),
        ("cudagraph_capture_sizes", "1,x", '--cudagraph-capture-sizes is "1,x"; wanted a whole number'),
        ("cudagraph_capture_sizes", "[1,", '--cudagraph-capture-sizes is "[1,"; wanted JSON'),
        ("max_lora_rank", 7, '--max-lora-rank is "7"; wanted one of 1, 8, 16, 32, 64, 128, 256, 320, 512'),
    ],
)
def test_values_of_the_wrong_kind(name: str, raw: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as said:
        value(name, raw)
    assert str(said.value) == f"{SOURCE}: {message}"


def test_a_wrong_choice_gets_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r'--kv-cache-dtype is "fp8_e4m4"; .*did you mean "fp8_e4m3"\?$'):
        value("kv_cache_dtype", "fp8_e4m4")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as said:
        arguments.find("max-modle-len", "file x.yaml")
    assert str(said.value) == (
        'file x.yaml: vLLM 0.19.1 has no argument "max-modle-len"; did you mean "max_model_len"?'
    )


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("max_model_len", 4096, ["--max-model-len", "4096"]),
        ("max_model_len", -1, ["--max-model-len=-1"]),
        ("enable_prefix_caching", True, ["--enable-prefix-caching"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("aggregate_engine_logging", True, ["--aggregate-engine-logging"]),
        ("aggregate_engine_logging", False, []),
        ("cudagraph_capture_sizes", [1, 2], ["--cudagraph-capture-sizes", "1", "2"]),
        ("middleware", ["a.B", "c.D"], ["--middleware", "a.B", "--middleware", "c.D"]),
        ("compilation_config", {"mode": 3}, ["--compilation-config", '{"mode":3}']),
        ("gpu_memory_utilization", 0.86, ["--gpu-memory-utilization", "0.86"]),
        ("seed", None, []),
    ],
)
def test_render(name: str, raw: object, words: list[str]) -> None:
    assert list(arguments.render(name, raw)) == words


def json_values() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.text()
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.dictionaries(st.text(), json_values(), min_size=1))
def test_rendered_json_is_read_back_unchanged(record: dict[str, Any]) -> None:
    words = list(arguments.render("compilation_config", record))
    (read,) = options.read_options(words, SOURCE)
    assert read.value == record


@given(st.sampled_from(sorted(arguments.table())), st.text())
def test_any_text_is_a_value_or_one_line(name: str, text: str) -> None:
    said = f"{SOURCE}: --"
    try:
        value(name, text)
    except ConfigurationError as error:
        said = str(error)
    assert said.startswith(f"{SOURCE}: --")
    assert said.isprintable()


@given(st.dictionaries(st.sampled_from("abc"), json_values()), st.dictionaries(st.sampled_from("abc"), json_values()))
def test_merge_lets_the_upper_win_and_keeps_the_rest(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    merged = arguments.merge(lower, upper)
    assert merged.keys() == lower.keys() | upper.keys()
    for key, item in upper.items():
        if not isinstance(item, dict):
            assert merged[key] == item
    assert all(merged[key] == item for key, item in lower.items() if key not in upper)
