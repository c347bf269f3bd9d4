"""The memory plan against figures that others published for real V100s.

Tolerances: pages, blocks and capacity are formulas and must come out exactly; what is left for KV is calibrated on two
published runs and must come out within 1 %.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigurationError
from appliance.profiles import catalogue
from appliance.profiles.kv import page_tokens, state_bytes, token_bytes
from appliance.profiles.memory import GIB, MemoryPlan, cuda_total, plan_memory

MIB = 2**20
CARD_16GB = 16160 * MIB
CARD_32GB = 32510 * MIB

RELEASE = catalogue.load("qwen38_27b_nvfp4_dflash2")
C32 = catalogue.load("qwen38_27b_fp8_c32")
LONG = catalogue.load("qwen38_27b_fp8_32k")
TP2 = catalogue.load("qwen38_27b_fp8_tp2")
PORTABLE = catalogue.load("portable_smollm2")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("ssm_bytes", "kv_bytes", "speculative", "page"),
    [
        (4, 2, 0, 784),
        (4, 1, 0, 1568),
        (4, 1, 4, 1616),
        (4, 2, 4, 816),
        (4, 2, 7, 832),
        (4, 1, 7, 1648),
        (2, 1, 0, 800),
        (4, 2, 3, 800),
    ],
)
def test_page_sizes_seen_in_the_wild(ranks: int, ssm_bytes: int, kv_bytes: int, speculative: int, page: int) -> None:
    geometry = RELEASE.memory.geometry
    state = state_bytes(geometry, tensor_parallel_size=ranks, num_speculative_tokens=speculative, ssm_bytes=ssm_bytes)
    assert page_tokens(state, token_bytes(geometry.kv_heads, geometry.head_dim, kv_bytes, ranks), None) == page


@pytest.mark.parametrize(("asked", "page"), [(16, 1568), (1568, 1568), (2048, 2048), (None, 1568)])
def test_a_block_size_below_the_state_is_raised(asked: int | None, page: int) -> None:
    plan = plan_memory(LONG, CARD_32GB, arguments={"block_size": asked})
    assert plan.layout.page_tokens == page


def test_release_profile_leaves_the_published_kv_on_16_gb_cards() -> None:
    plan = plan_memory(RELEASE, CARD_16GB)
    assert plan.fits
    assert plan.kv_bytes / GIB == pytest.approx(4.07, rel=0.01)
    assert (plan.layout.block_bytes, plan.blocks, plan.blocks_per_request) == (8 * MIB, 521, 321)
    assert plan.kv_tokens == 425_473


def test_release_capacity_follows_from_the_published_kv_bytes_alone() -> None:
    plan = plan_memory(RELEASE, CARD_16GB, arguments={"kv_cache_memory_bytes": int(4.07 * GIB)})
    assert plan.kv_tokens == pytest.approx(425_473, rel=0.005)


def test_a_larger_prefill_budget_leaves_the_published_kv() -> None:
    plan = plan_memory(RELEASE, CARD_16GB, arguments={"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.92})
    assert plan.kv_bytes / GIB == pytest.approx(3.33, rel=0.01)


def test_the_share_that_ran_out_is_refused_and_the_one_that_just_passed_is_not() -> None:
    assert plan_memory(RELEASE, CARD_16GB, arguments={"gpu_memory_utilization": 0.88}).fits
    plan = plan_memory(RELEASE, CARD_16GB, arguments={"gpu_memory_utilization": 0.92})
    assert plan.shortfalls == (
        "1.26 GiB of 15.78 GiB is left for 1.53 GiB graphs and context + 0.25 GiB headroom = 1.78 GiB; "
        "lower gpu_memory_utilization",
    )


def test_four_requests_of_64k_fit_at_once_as_published() -> None:
    plan = plan_memory(RELEASE, CARD_16GB)
    assert 4 * plan.layout.blocks(65536) <= plan.blocks


def test_32k_profile_has_the_published_capacity() -> None:
    plan = plan_memory(LONG, CARD_32GB)
    assert plan.fits
    assert plan.max_concurrency == pytest.approx(57.21, abs=0.005)
    assert plan.kv_tokens == 1_889_444
    assert (plan.layout.page_tokens, plan.blocks, plan.blocks_per_request) == (1568, 1602, 28)


def test_32k_profile_needs_32_gb_cards() -> None:
    plan = plan_memory(LONG, CARD_16GB)
    assert any("for 32 requests of 33,024 tokens" in shortfall for shortfall in plan.shortfalls)


def test_32_short_requests_fit_on_16_gb_cards() -> None:
    plan = plan_memory(C32, CARD_16GB)
    assert plan.fits
    assert (plan.layout.page_tokens, plan.layout.state_blocks) == (784, 1)


def test_prefix_caching_takes_a_second_state() -> None:
    plan = plan_memory(C32, CARD_32GB, arguments={"enable_prefix_caching": True})
    assert plan.layout.state_blocks == 2


def test_two_ranks_do_not_fit_into_16_gb() -> None:
    plan = plan_memory(TP2, CARD_16GB)
    assert plan.shortfalls == (
        "15.14 GiB weights + 0.50 GiB workspaces + 1.48 GiB activations + 0.50 GiB prefix bridge = 17.62 GiB "
        "besides KV is more than the 14.20 GiB that may be used",
    )
    assert plan.kv_bytes == 0
    assert plan_memory(TP2, CARD_32GB).fits


def test_without_speculation_the_draft_takes_nothing() -> None:
    plan = plan_memory(RELEASE, CARD_16GB, num_speculative_tokens=0)
    assert "draft weights" not in {part.name for part in plan.parts}
    assert (plan.layout.draft_groups, plan.layout.state_blocks) == (0, 2)
    assert plan.kv_tokens > plan_memory(RELEASE, CARD_16GB).kv_tokens


def test_the_bridge_is_for_8_bit_kv_only() -> None:
    assert "prefix bridge" in {part.name for part in plan_memory(RELEASE, CARD_32GB).parts}
    plain = plan_memory(RELEASE, CARD_32GB, arguments={"kv_cache_dtype": "auto"})
    assert "prefix bridge" not in {part.name for part in plain.parts}


def test_fewer_ranks_carry_more_weights() -> None:
    four, two = (plan_memory(C32, CARD_32GB, tensor_parallel_size=ranks) for ranks in (4, 2))
    assert two.parts[0].bytes == pytest.approx(2 * four.parts[0].bytes)
    assert two.layout.page_bytes == 2 * four.layout.page_bytes


def test_another_checkpoint_scales_the_weights() -> None:
    assert C32.model.bytes is not None
    plan = plan_memory(C32, CARD_32GB, checkpoint_bytes=2 * C32.model.bytes)
    assert plan.parts[0].bytes / GIB == pytest.approx(2 * 7.57, rel=1e-6)
    assert plan_memory(RELEASE, CARD_16GB, checkpoint_bytes=4 * GIB).parts[0].bytes == GIB


def test_a_budget_below_a_page_is_refused_in_align_mode() -> None:
    plan = plan_memory(RELEASE, CARD_16GB, arguments={"max_num_batched_tokens": 1024})
    assert plan.shortfalls == ("max_num_batched_tokens is 1,024, and align mode needs a whole KV page of 2,048",)


def test_whole_gib_of_a_newer_driver_are_what_is_on_the_board() -> None:
    assert cuda_total(32 * GIB) == CARD_32GB
    assert cuda_total(CARD_16GB) == CARD_16GB
    assert plan_memory(RELEASE, 16 * GIB).fits


def test_portable_profile_is_planned_on_the_host() -> None:
    plan = plan_memory(PORTABLE, 8 * GIB)
    assert (plan.device, plan.fits, plan.kv_bytes) == ("host", True, GIB)
    assert plan.layout.blocks(4096) == 32
    assert plan_memory(PORTABLE, 2 * GIB).shortfalls == (
        "0.25 GiB weights + 2.00 GiB workspaces = 2.25 GiB besides KV is more than the 2.00 GiB that may be used",
    )
    more = plan_memory(PORTABLE, 8 * GIB, environment={"VLLM_CPU_KVCACHE_SPACE": "6"})
    assert more.shortfalls == (
        "0.25 GiB weights + 2.00 GiB workspaces + 6.00 GiB KV + 0.50 GiB headroom = 8.75 GiB "
        "is more than the host's 8.00 GiB",
    )


def test_vllm_takes_half_of_the_host_for_kv_where_nothing_is_said() -> None:
    plan = plan_memory(PORTABLE, 8 * GIB, environment={"VLLM_CPU_KVCACHE_SPACE": "0"})
    assert plan.kv_bytes == 4 * GIB


def test_explanation_adds_up_for_a_person() -> None:
    lines = plan_memory(RELEASE, CARD_16GB).explain()
    assert lines[0].startswith("A rank needs 4.59 GiB weights + 1.17 GiB draft weights")
    assert "0.86 of the card's 15.78 GiB is 13.57 GiB, which leaves 4.07 GiB for KV." in lines[0]
    assert lines[2] == ("KV pages of 2,048 tokens: 425,473 tokens in all, 1.62 requests of 262,144 tokens at once.")
    assert plan_memory(TP2, CARD_16GB).explain()[-1].startswith("Does not fit: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_model_len": "long"}, "max_model_len is 'long'; wanted a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs is True; wanted a whole number"),
        ({"gpu_memory_utilization": 86}, "gpu_memory_utilization is 86; wanted a number above 0 and up to 1"),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size is 3; wanted a divisor of the model's 4 KV heads"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan_memory(RELEASE, CARD_16GB, arguments=arguments)


def test_auto_length_stands_for_the_profiles_own() -> None:
    assert plan_memory(RELEASE, CARD_16GB, arguments={"max_model_len": "auto"}).max_model_len == 262144


@given(
    memory=st.integers(GIB, 96 * GIB),
    length=st.integers(1, 1_010_000),
    sequences=st.integers(1, 64),
    budget=st.integers(1, 32768),
    speculative=st.integers(0, 16),
    ranks=st.sampled_from([1, 2, 4]),
    kv=st.sampled_from(["auto", "fp8_e4m3", "float16"]),
    block=st.integers(1, 8192),
)
def test_any_plan_adds_up(
    memory: int, length: int, sequences: int, budget: int, speculative: int, ranks: int, kv: str, block: int
) -> None:
    arguments = {
        "max_model_len": length,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": budget,
        "kv_cache_dtype": kv,
        "block_size": block,
    }
    plan: MemoryPlan = plan_memory(
        RELEASE, memory, tensor_parallel_size=ranks, arguments=arguments, num_speculative_tokens=speculative
    )
    taken = sum(part.bytes for part in plan.parts)
    assert plan.kv_bytes == max(0, plan.share_bytes - taken)
    assert plan.blocks * plan.layout.block_bytes <= plan.kv_bytes
    state = state_bytes(
        RELEASE.memory.geometry, tensor_parallel_size=ranks, num_speculative_tokens=speculative, ssm_bytes=4
    )
    assert plan.layout.page_bytes >= state
    assert not plan.fits or plan.max_concurrency >= 1
    assert plan.layout.blocks(length) <= plan.layout.blocks(length + 1)
    assert json.loads(json.dumps(plan.to_json()))["fits"] is plan.fits
