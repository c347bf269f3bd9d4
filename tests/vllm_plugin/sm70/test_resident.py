"""What stays in a rank's memory, by what it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from appliance.vllm_plugin.sm70 import operators, rank_report
from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


def test_weights_are_told_apart_and_are_all_there_is(load: Callable[..., Any]) -> None:
    from appliance.vllm_plugin.sm70 import resident

    model = load(synthetic.make("ct-channel"))
    found = resident.weights(model)
    everything = {each.data_ptr(): each.untyped_storage().nbytes() for each in (*model.parameters(), *model.buffers())}
    assert sum(found.values()) == sum(everything.values())
    fp8 = [name for name in synthetic.LINEARS if name not in synthetic.SMALL]
    elements = sum(rows * columns for rows, columns in (synthetic.LINEARS[name] for name in fp8))
    # A byte for each weight, and scales beside.
    assert elements <= found["fp8_linear_weights"] < 1.1 * elements
    head = 512 * synthetic.HIDDEN
    assert head <= found["fp8_head_weights"] < 1.1 * head


def test_a_shared_tensor_counts_once() -> None:
    from appliance.vllm_plugin.sm70 import resident

    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = torch.nn.Parameter(model[0].weight.data[:4])
    assert resident.weights(model)["other_weights"] == 8 * 8 * 4


def test_a_runner_that_is_ready_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.vllm_plugin.sm70 import resident

    monkeypatch.setattr(rank_report, "_NOTES", {})
    monkeypatch.setattr(rank_report, "_RESIDENT", {})
    monkeypatch.setattr(operators, "workspace_bytes", lambda: 500)
    cache = torch.zeros(100)
    caches = [cache, [torch.zeros(50), cache[:10]]]
    model = torch.nn.Linear(4, 4, bias=False)
    resident.tell(SimpleNamespace(get_model=lambda: model, kv_caches=caches, graph_bytes=77))
    assert rank_report._RESIDENT == {
        "fp8_linear_weights": 0,
        "fp8_head_weights": 0,
        "other_weights": 64,
        "workspaces": 500,
        "kv_cache": 600,
        "graphs": 77,
    }
    assert rank_report._NOTES["fp8_dense"] == {"resident_bytes": 0}
