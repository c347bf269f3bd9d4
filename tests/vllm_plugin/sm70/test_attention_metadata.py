"""Which operator each sequence of a batch goes through, with the route of mixed batches on and off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.vllm_plugin.sm70 import counters, routes
from appliance.vllm_plugin.sm70.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

ROUTE = "mixed_batch_resident_decode"
LENGTHS = [1, 1, 5]
"""Two sequences after their prompt, and a prompt."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counters]:
    from appliance.vllm_plugin.sm70 import attention

    fresh = Counters()
    monkeypatch.setattr(attention, "COUNTERS", fresh)
    yield fresh
    routes.adopt({})


def build(lengths: list[int]) -> Any:
    """Return the metadata that our builder makes of a batch."""
    from appliance.vllm_plugin.sm70.attention import Sm70AttentionMetadataBuilder

    builder = object.__new__(Sm70AttentionMetadataBuilder)
    parallel = SimpleNamespace(decode_context_parallel_size=1)
    builder.vllm_config = SimpleNamespace(speculative_config=None, parallel_config=parallel)
    Sm70AttentionMetadataBuilder.__init__(
        builder, SimpleNamespace(block_size=16), ["layer"], builder.vllm_config, torch.device("cpu")
    )
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    batch = SimpleNamespace(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths).int() + 10,
        block_table_tensor=torch.zeros(len(lengths), 4).int(),
        num_reqs=len(lengths),
        num_actual_tokens=sum(lengths),
        slot_mapping=torch.zeros(sum(lengths)).long(),
        max_query_len=max(lengths),
        max_seq_len=max(lengths) + 10,
        is_prefilling=None,
    )
    return builder.build(0, batch)


def test_rows_after_the_prompt_go_through_decode_attention_and_are_counted(counted: Counters) -> None:
    found = build(LENGTHS)
    assert (found.decode.first, found.decode.last) == (0, 2)
    assert (found.prefill.first, found.prefill.last) == (2, 7)
    assert found.prefill.query_start_loc.tolist() == [0, 5]
    assert counted.of_route(ROUTE)["dispatched"] == 1


def test_switched_off_the_whole_mixed_batch_goes_through_prefill_attention(counted: Counters) -> None:
    off = RouteState("disabled", "user_override", "config")
    routes.adopt({name: RouteState("enabled") for name in ROUTES} | {ROUTE: off})
    found = build(LENGTHS)
    assert found.decode is None
    assert (found.prefill.first, found.prefill.last) == (0, 7)
    assert found.prefill.query_start_loc.tolist() == [0, 1, 2, 7]
    assert counted.of_route(ROUTE)["dispatched"] == 0
    # A batch of such rows alone is no mixed one.
    assert build([1, 1]).prefill is None


def test_a_missing_kernel_leaves_the_rows_where_they_are(counted: Counters) -> None:
    lacking = RouteState("disabled", "operator_missing:attention_decode")
    routes.adopt({name: RouteState("enabled") for name in ROUTES} | {ROUTE: lacking})
    assert build(LENGTHS).decode is not None
    assert counters.ALONE[ROUTE] == ()
