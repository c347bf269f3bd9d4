"""The one door to sm70_kernels: modules of the kernel package are imported here, on first use, and nowhere else."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import torch

    from sm70_kernels.dense.pack import PackedDense
    from sm70_kernels.dispatch import Counts

_DEFINED_BY = {
    "dense_w8a16": "sm70_kernels.dense.operator",
    "dense_w8a16_silu_mul": "sm70_kernels.dense.operator",
    "rms_norm": "sm70_kernels.norm.operator",
    "add_rms_norm": "sm70_kernels.norm.operator",
    "gated_rms_norm": "sm70_kernels.norm.operator",
    "qk_norm_mrope": "sm70_kernels.norm.operator",
    "silu_and_mul": "sm70_kernels.activation.operator",
    "sigmoid_gate": "sm70_kernels.activation.operator",
    "kv_cache_write": "sm70_kernels.attention.operator",
    "attention_decode": "sm70_kernels.attention.operator",
    "attention_prefill": "sm70_kernels.attention.operator",
    "gdn_decode": "sm70_kernels.gdn.operator",
    "gdn_prefill": "sm70_kernels.gdn.operator",
    "gdn_verify": "sm70_kernels.gdn.operator",
}


@cache
def operator(name: str) -> Callable[..., Any]:
    """Return `torch.ops.sm70.NAME`, a call that torch.compile sees as one node; on a CPU it runs the reference.

    To be called while a layer is built: torch.compile cannot trace the import.
    """
    import torch

    import_module(_DEFINED_BY[name])
    return getattr(torch.ops.sm70, name).default  # type: ignore[no-any-return]


def use_references(names: Iterable[str], *, expand: bool) -> None:
    """Let these operators run their references on CUDA in this process, all others their kernels.

    `expand` says whether the dense operators may expand weights for many rows.
    """
    from sm70_kernels import dispatch
    from sm70_kernels.dense import choice

    dispatch.use_references(names)
    choice.allow_expansion(expand)


def launch_decode_attention(dual_from: int | None, *, split: bool) -> None:
    """Say from how many sequences on two thread blocks share an SM (None: never), and whether contexts are split."""
    from sm70_kernels.attention import operator as attention

    attention.serve_dual_from(dual_from)
    attention.split_contexts(split)


def packs_pages() -> bool:
    """Say whether the KV cache's pages lie in our kernels' order on CUDA: its writer and decode attention serve."""
    from sm70_kernels import dispatch

    return has_kernel("kv_cache_write") and dispatch.kernel_serves("kv_cache_write")


def count(name: str, provider: str, rows: int) -> None:
    """Count a call of an operator's work that somebody else's kernel does."""
    from sm70_kernels import dispatch

    dispatch.count(name, provider, rows)


def counted_apart() -> AbstractContextManager[Counts]:
    """Return a context whose calls of operators are counted into what it gives, and nowhere else."""
    from sm70_kernels import dispatch

    return dispatch.apart()


def has_kernel(name: str) -> bool:
    """Say whether `torch.ops.sm70.NAME` has a kernel of ours for CUDA, not only its reference."""
    from sm70_kernels.torch_library import has_kernel

    operator(name)
    return has_kernel(name)


def source_hash() -> str:
    """Return the SHA-256 of the kernels' sources."""
    from sm70_kernels import registry

    return registry.source_hash()


def pack_blocks(weight: torch.Tensor, scale: torch.Tensor, gated: bool) -> PackedDense:
    """Pack an FP8 weight with a scale for each 128 × 128 block; see `sm70_kernels`' function of this name."""
    from sm70_kernels.dense.pack import pack_blocks

    # Along N a piece begins where its blocks do (fp8_weights.pieces_of); along K the layer refuses other shards.
    return pack_blocks(weight, scale, gated, split=(1, 1))


def pack_channels(weight: torch.Tensor, scale: torch.Tensor, gated: bool) -> PackedDense:
    """Pack an FP8 weight with a scale for each row; see `sm70_kernels`' function of this name."""
    from sm70_kernels.dense.pack import pack_channels

    return pack_channels(weight, scale, gated)


def workspace_bytes() -> int:
    """Return the bytes that the operators' workspaces take in this process."""
    from sm70_kernels.launch import workspace

    return workspace.reserved_bytes()


@cache
def reserve_workspace(device: torch.device) -> None:
    """Take the memory that operators need between their launches, so that it is counted at load."""
    from sm70_kernels.launch import workspace

    workspace.reserve(device)
