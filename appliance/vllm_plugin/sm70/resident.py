"""What stays in a rank's memory once it serves, in bytes by what it is, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.vllm_plugin.sm70 import attention_providers, operators, rank_report
from appliance.vllm_plugin.sm70.linear_fp8 import Sm70Fp8LinearMethod
from appliance.vllm_plugin.sm70.lm_head import Sm70Fp8HeadMethod

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def weights(model: torch.nn.Module) -> dict[str, int]:
    """Return the bytes of a model's parameters and buffers: FP8 linear layers, the FP8 head, all others.

    A tensor that two modules share counts once.
    """
    found = {"fp8_linear_weights": 0, "fp8_head_weights": 0, "other_weights": 0}
    seen: set[int] = set()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        kind = "other_weights"
        if isinstance(method, Sm70Fp8LinearMethod):
            kind = "fp8_linear_weights"
        elif isinstance(method, Sm70Fp8HeadMethod):
            kind = "fp8_head_weights"
        found[kind] += _bytes((*module.parameters(recurse=False), *module.buffers(recurse=False)), seen)
    return found


def tell(runner: Any) -> None:  # noqa: ANN401 - vLLM's model runner
    """Put what a runner that is ready to serve keeps into this rank's report; `graphs` is vLLM's own measurement."""
    found = weights(runner.get_model())
    found["workspaces"] = operators.workspace_bytes() + attention_providers.scratch_bytes()
    found["kv_cache"] = _bytes(_tensors(runner.kv_caches), set())
    found["graphs"] = runner.graph_bytes
    rank_report.tell_resident(found)
    rank_report.note("fp8_dense", resident_bytes=found["fp8_linear_weights"] + found["fp8_head_weights"])


def _tensors(caches: Iterable[Any]) -> Iterable[torch.Tensor]:
    for cache in caches:
        yield from cache if isinstance(cache, (list, tuple)) else (cache,)


def _bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total
