"""Which routes real configurations of vLLM may take: the contracts and the override tables of the published recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.vllm_plugin.sm70 import admission
from appliance.vllm_plugin.sm70.admission import ADMISSIONS, MIN_BATCH, Default, View, quantization_of, view_of
from appliance.vllm_plugin.sm70.routes import Facts, decide
from tests.vllm_plugin.sm70 import real_configs
from tests.vllm_plugin.sm70.test_routes import EVERY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

FACTS = Facts(active=True, capability=(7, 0), kernels=EVERY, operators=EVERY)


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the maker of views of real configurations."""
    real_configs.as_on_cuda(monkeypatch)

    def view(arguments: dict[str, Any], drafts: int = 0, **more: Any) -> View:
        return view_of(real_configs.build(tmp_path, drafts=drafts, **(arguments | more)))

    return view


def reasons(view: View, *names: str, facts: Facts = FACTS) -> dict[str, str | None]:
    states = decide(facts, view)
    return {name: states[name].reason for name in names}


E4M3 = ("e4m3_grouped_fp32", "long_context", "scalar_tail")


def test_the_release_recipe_is_admitted_whole(configured: Any) -> None:
    view = configured(real_configs.RELEASE, drafts=7)
    names = (*E4M3, "q8000_prefill", "q4096_prefill", "e4m3_prefix_bridge", "dflash2_verifier", "compile_graph")
    assert reasons(view, *names) == dict.fromkeys(names)
    assert (view.method, view.num_speculative_tokens, view.captured) == ("dflash", 7, (1, 2, 4, 8, 16, 24, 32))


@pytest.mark.parametrize(
    ("changed", "drafts", "expected"),
    [
        ({"kv_cache_dtype": "fp8_e5m2"}, 0, dict.fromkeys(E4M3, "kv_dtype")),
        ({"max_num_batched_tokens": 6000}, 0, {"q8000_prefill": "budget<8000", "q4096_prefill": None}),
        ({}, 5, {"dflash2_verifier": "num_speculative_tokens=5≠7"}),
        ({}, 0, {"dflash2_verifier": "method=None≠dflash"}),
        ({"enforce_eager": True}, 0, {"compile_graph": "user_override"}),
    ],
    ids=["e5m2", "budget-6000", "five-drafts", "no-speculation", "eager"],
)
def test_the_release_recipes_overrides(
    configured: Any, changed: dict[str, Any], drafts: int, expected: dict[str, str | None]
) -> None:
    view = configured(real_configs.RELEASE, drafts, **changed)
    facts = replace(FACTS, sources={"enforce_eager": "command line"})
    assert reasons(view, *expected, facts=facts) == expected


@pytest.mark.parametrize(("page", "reason"), [(16, "page_size"), (1560, "page_alignment"), (1568, None), (2048, None)])
def test_the_pages_of_the_scalar_tail(configured: Any, page: int, reason: str | None) -> None:
    # vLLM raises the pages of hybrid models while it completes a configuration, so the last word is the view's.
    view = replace(configured(real_configs.RELEASE), block_size=page)
    assert reasons(view, "scalar_tail", "e4m3_grouped_fp32") == {"scalar_tail": reason, "e4m3_grouped_fp32": None}


def test_the_c32_contract_is_met_by_its_recipe(configured: Any) -> None:
    view = configured(real_configs.C32)
    assert reasons(view, "dual_attention_b16", "fp16_grouped_fp32") == {
        "dual_attention_b16": None,
        "fp16_grouped_fp32": None,
    }
    assert admission.c32_defaults(view, (7, 0), {}) == {MIN_BATCH: Default("16", "default")}


@pytest.mark.parametrize(
    ("changed", "drafts", "reason"),
    [
        ({"tensor_parallel_size": 2}, 0, "contract_mismatch:tensor_parallel_size=2≠4"),
        ({"pipeline_parallel_size": 2}, 0, "contract_mismatch:pipeline_parallel_size=2≠1"),
        ({"kv_cache_dtype": "fp8_e4m3"}, 0, "kv_dtype"),
        ({"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}, 0, "contract_mismatch:captured=16≠32"),
        ({"enforce_eager": True}, 0, "contract_mismatch:captured=0≠32"),
        ({"dtype": "bfloat16"}, 0, "contract_mismatch:dtype=bfloat16≠float16"),
        ({}, 7, "contract_mismatch:method=dflash≠None"),
    ],
    ids=["tp2", "pp2", "e4m3", "no-32", "eager", "bfloat16", "speculation"],
)
def test_the_c32_defaults_are_for_exactly_its_contract(
    configured: Any, changed: dict[str, Any], drafts: int, reason: str
) -> None:
    view = configured(real_configs.C32, drafts, **changed)
    assert admission.c32(view) == reason
    assert admission.c32_defaults(view, (7, 0), {}) == {}
    # Whoever sets the variable keeps it, contract or not.
    kept = {MIN_BATCH: Default("8", f"environment {MIN_BATCH}")}
    assert admission.c32_defaults(view, (7, 0), {MIN_BATCH: "8"}) == kept


def test_the_c32_contract_asks_for_fp8_weights_and_this_model() -> None:
    met = View(
        quantization="fp8",
        tensor_parallel_size=4,
        hidden_size=5120,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        captured=(32,),
    )
    assert admission.c32(met) is None
    assert admission.c32_defaults(met, (9, 0), {}) == {}
    assert admission.c32(replace(met, quantization="nvfp4")) == "contract_mismatch:quantization=nvfp4≠fp8"
    assert admission.c32(replace(met, hidden_size=4096)) == "contract_mismatch:hidden_size=4096≠5120"
    assert admission.c32(replace(met, head_dim=128)) == "contract_mismatch:head_dim=128≠256"


def test_the_alias_fp8_is_e4m3(configured: Any) -> None:
    view = configured(real_configs.RELEASE, kv_cache_dtype="fp8")
    assert view.kv_format == "fp8_e4m3"
    assert reasons(view, *E4M3) == dict.fromkeys(E4M3)


def test_switches_come_from_additional_config(configured: Any) -> None:
    view = configured(real_configs.C32, additional_config={"sm70": {"fp8_dense": False}})
    facts = replace(FACTS, sources={"additional_config": "command line"})
    assert reasons(view, "fp8_dense", "silu_mul", facts=facts) == {"fp8_dense": "user_override", "silu_mul": None}


@pytest.mark.parametrize(
    ("method", "checkpoint", "kind"),
    [
        (None, None, None),
        ("fp8", real_configs.FP8, "fp8"),
        ("compressed-tensors", {"format": "float-quantized"}, "fp8"),
        ("compressed-tensors", {"config_groups": {"group_0": {"format": "float-quantized"}}}, "fp8"),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}, "nvfp4"),
        ("compressed-tensors", {"config_groups": {"group_0": {"format": "nvfp4-pack-quantized"}}}, "nvfp4"),
        ("compressed-tensors", {"format": "pack-quantized"}, "compressed-tensors"),
        ("modelopt", {"quant_algo": "NVFP4"}, "nvfp4"),
        ("modelopt_fp4", {}, "nvfp4"),
        ("awq", {}, "awq"),
    ],
)
def test_the_kind_of_the_weights(method: str | None, checkpoint: dict[str, Any] | None, kind: str | None) -> None:
    assert quantization_of(method, checkpoint) == kind


@pytest.mark.parametrize(
    ("name", "changed", "reason"),
    [
        ("attention_backend", {"kv_cache_dtype": "nvfp4"}, "kv_dtype"),
        ("long_context", {"head_dim": 128}, "head_dim"),
        ("fp16_grouped_fp32", {"num_attention_heads": 32}, "contract_mismatch:num_attention_heads=32≠24"),
        ("q8000_prefill", {"head_dim": 128}, "head_dim"),
        ("q4096_prefill", {"max_num_batched_tokens": 2048}, "budget<4096"),
        ("qk_norm_rope", {"head_dim": 128}, "head_dim"),
        ("linear_attention", {"linear_attention": False}, "not_applicable"),
        ("fp8_dense", {"quantization": None}, "not_applicable"),
        ("all_reduce", {"tensor_parallel_size": 1}, "not_applicable"),
        ("partial_prefix_cache", {"enable_prefix_caching": False}, "enable_prefix_caching=False≠True"),
        ("dflash2_verifier", {"hidden_size": 4096}, "contract_mismatch:hidden_size=4096≠5120"),
        ("dflash2_verifier", {"tensor_parallel_size": 2}, "contract_mismatch:tensor_parallel_size=2≠4"),
        ("compile_graph", {"captured": ()}, "cudagraph_mode=FULL≠FULL_AND_PIECEWISE"),
    ],
)
def test_each_reason_of_an_admission(name: str, changed: dict[str, Any], reason: str) -> None:
    met = View(
        quantization="fp8",
        tensor_parallel_size=4,
        hidden_size=5120,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        linear_attention=True,
        method="dflash",
        num_speculative_tokens=7,
        cudagraph_mode="FULL",
        captured=(8,),
        enable_prefix_caching=True,
    )
    assert ADMISSIONS[name](met) is None
    assert ADMISSIONS[name](replace(met, **changed)) == reason
