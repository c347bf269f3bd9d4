"""What our platforms decide about a configuration, each refusal as one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from appliance.vllm_plugin.sm70 import platform_rules as rules
from appliance.vllm_plugin.sm70.platform_choice import PlatformError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

OPS = ("GemmaRMSNorm", "SiluAndMul")


def test_float16_alone_is_served_and_bfloat16_gets_a_line_of_its_own() -> None:
    rules.refuse_dtype(torch.float16)
    with pytest.raises(ValueError, match=r"^--dtype bfloat16 is not served: SM70 has no .*--dtype half") as told:
        rules.refuse_dtype(torch.bfloat16)
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match=r"^--dtype float32 is not served: the SM70 operators compute in float16"):
        rules.refuse_dtype(torch.float32)


def test_other_methods_are_refused_with_the_list_of_those_that_are_served() -> None:
    for method in ("fp8", "compressed-tensors"):
        rules.refuse_method(method)
    with pytest.raises(ValueError, match=r"^quantization awq is not served on SM70: this build serves fp8, com"):
        rules.refuse_method("awq")


def test_other_attention_backends_are_refused_with_the_list_of_those_that_run() -> None:
    rules.refuse_backend(None, ("CUSTOM",))
    rules.refuse_backend("CUSTOM", ("CUSTOM", "TRITON_ATTN"))
    with pytest.raises(ValueError, match=r"FLASH_ATTN does not run on SM70: supported are CUSTOM, TRITON_ATTN$"):
        rules.refuse_backend("FLASH_ATTN", ("CUSTOM", "TRITON_ATTN"))


def test_our_operators_are_enabled_by_name_because_inductors_default_is_none() -> None:
    custom_ops = ["none"]
    rules.enable_ops(custom_ops, {}, OPS)
    assert custom_ops == ["none", "+GemmaRMSNorm", "+SiluAndMul"]
    rules.check_ops(custom_ops, {}, OPS)


def test_a_route_that_is_switched_off_leaves_its_operator_to_vllm() -> None:
    custom_ops: list[str] = []
    rules.enable_ops(custom_ops, {"gemma_rms_norm": False}, OPS)
    assert custom_ops == ["-GemmaRMSNorm", "+SiluAndMul"]
    rules.check_ops([*custom_ops, "none"], {"gemma_rms_norm": False}, OPS)


def test_what_the_user_says_of_an_operator_stands() -> None:
    custom_ops = ["-SiluAndMul"]
    rules.enable_ops(custom_ops, {}, OPS)
    assert custom_ops == ["-SiluAndMul", "+GemmaRMSNorm"]


def test_an_operator_that_got_lost_stops_the_start() -> None:
    with pytest.raises(PlatformError, match=r"^the operators SiluAndMul would run vLLM's own version"):
        rules.check_ops(["none", "+GemmaRMSNorm"], {}, OPS)


def test_every_name_that_is_enabled_is_one_that_a_class_of_ours_registers(sm70: None) -> None:
    from vllm.model_executor.custom_op import op_registry_oot

    assert set(rules.our_ops()) <= op_registry_oot.keys()


@pytest.mark.parametrize("rows", range(1, 9))
def test_every_number_of_sequences_has_a_full_graph_at_every_number_of_rows(rows: int) -> None:
    sizes = rules.capture_sizes(32, rows, 8192)
    assert {sequences * rows for sequences in range(1, 33)} <= set(sizes)
    assert sizes == sorted(set(sizes))


def test_no_graph_is_larger_than_a_step() -> None:
    assert max(rules.capture_sizes(32, 8, 100)) <= 100


def config(**speculative: int) -> Any:
    return SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=None, max_cudagraph_capture_size=None),
        model_config=SimpleNamespace(enforce_eager=False),
        scheduler_config=SimpleNamespace(max_num_seqs=4, max_num_batched_tokens=2048),
        speculative_config=SimpleNamespace(**speculative) if speculative else None,
    )


def test_sizes_that_the_user_gave_stand_and_eager_execution_captures_none() -> None:
    given = config()
    given.compilation_config.cudagraph_capture_sizes = [16]
    eager = config()
    eager.model_config.enforce_eager = True
    for one, expected in ((given, [16]), (eager, None)):
        rules.set_capture_sizes(one)
        assert one.compilation_config.cudagraph_capture_sizes == expected


def test_more_rows_than_graphs_exist_for_are_refused() -> None:
    fits = config(num_speculative_tokens=7)
    rules.set_capture_sizes(fits)
    assert {8, 16, 24, 32} <= set(fits.compilation_config.cudagraph_capture_sizes)
    with pytest.raises(ValueError, match=r"^num_speculative_tokens is 8; graphs exist for at most 8 rows"):
        rules.set_capture_sizes(config(num_speculative_tokens=8))


def test_the_compile_key_holds_the_hashes_of_plugin_and_kernels() -> None:
    from vllm.config import VllmConfig

    def key(build: dict[str, str]) -> str:
        return str(VllmConfig(additional_config={"sm70_build": build}).compute_hash())

    told: dict[str, Any] = {}
    rules.add_build_hashes(told)
    build = told["sm70_build"]
    assert set(build) == {"plugin", "kernels"}
    assert all(len(digest) == 64 for digest in build.values())
    assert key(build) == key(dict(build))
    for part in build:
        assert key(build | {part: "0" * 64}) != key(build)


def test_a_misspelt_switch_is_refused() -> None:
    assert rules.switches({"sm70": {"gdn_decode": False}}) == {"gdn_decode": False}
    assert rules.switches(None) == {}
    with pytest.raises(ValueError, match=r'^additional_config\["sm70"\] is True; wanted is an object'):
        rules.switches({"sm70": True})
    with pytest.raises(ValueError, match=r"^additional_config sm70.gdn_decod is no switch"):
        rules.switches({"sm70": {"gdn_decod": False}})


def test_load_formats_past_our_loader_are_refused_with_those_that_come_through_it() -> None:
    from vllm.model_executor.model_loader import LoadFormats

    known = get_args(LoadFormats)
    assert set(rules.LOAD_FORMATS) < set(known)
    for name in (*known, "my_loader"):
        if name in rules.LOAD_FORMATS:
            rules.refuse_load_format(name)
            continue
        with pytest.raises(ValueError, match=rf"^--load-format {name} is not served on SM70: this build loads") as told:
            rules.refuse_load_format(name)
        assert "auto, hf, safetensors, dummy" in str(told.value)
        assert "\n" not in str(told.value)


def test_every_load_format_that_is_served_has_a_loader_of_ours(sm70: None) -> None:
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as REGISTERED

    names = {name for name, loader in REGISTERED.items() if loader.__module__.startswith("appliance.")}
    assert names == set(rules.LOAD_FORMATS)
