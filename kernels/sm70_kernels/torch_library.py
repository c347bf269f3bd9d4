"""The one way in which an operator of ours becomes `torch.ops.sm70.NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = torch.library.Library("sm70", "FRAGMENT")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What the references compute in."""

_KERNELS: set[str] = set()


def register(
    schema: str,
    *,
    cuda: Callable[..., Any] | None,
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    mutates: tuple[str, ...] = (),
    counts_itself: bool = False,
    awaits_gpu: bool = False,
) -> None:
    """Register `NAME(arguments) -> results` with its three implementations.

    `fake` gives empty tensors of the results' shapes and types. All results are new and packed. `mutates` names the
    arguments that the operator changes, in the schema's order; the schema must mark just these, `Tensor(a!) name`, or
    AssertionError is raised: torch.compile treats all others as unchanged. With `cuda=None` no kernel
    exists: the operator's CPU implementation, plain torch, runs on CUDA too, and `has_kernel` says no. The same holds
    with `awaits_gpu`, until `dispatch.try_awaiting`: a kernel that no GPU has run serves nobody. Calls are counted
    (`sm70_kernels.dispatch`), those of the kernel by `cuda` where it `counts_itself`.
    """
    name = schema.partition("(")[0]
    parsed = torch._C.parse_schema(schema)
    marked = tuple(each.name for each in parsed.arguments if each.alias_info is not None and each.alias_info.is_write)
    assert marked == mutates, f"sm70.{name} is said to change {mutates}, and its schema marks {marked}"
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    plain = dispatch.by_reference(name, cpu)
    LIBRARY.impl(name, plain if cuda is None else dispatch.on_cuda(name, cuda, cpu, counts_itself), "CUDA")
    LIBRARY.impl(name, plain, "CPU")
    torch.library.register_fake(f"sm70::{name}", fake, lib=LIBRARY)
    if cuda is not None:
        (dispatch.AWAITING if awaits_gpu else _KERNELS).add(name)


def has_kernel(name: str) -> bool:
    """Say whether `torch.ops.sm70.NAME` runs a kernel of ours, one that a GPU has proven, and not its reference."""
    return name in _KERNELS


def like_first(x: torch.Tensor, *_: object) -> torch.Tensor:
    """Be the fake implementation of an operator whose result is like its first argument, packed."""
    return x.new_empty(x.shape)


def nothing(*_: object) -> None:
    """Be the fake implementation of an operator that only changes its arguments."""


def refused(operator: str, what: str, seen: object) -> ValueError:
    """Return the error `sm70.OPERATOR wants WHAT, not SEEN`; a tensor is seen as its type, shape and place.

    Raised behind an `if`, it costs nothing while all is well: describing a tensor takes as long as a launch.
    """
    return ValueError(f"sm70.{operator} wants {what}, not {_described(seen) if torch.is_tensor(seen) else seen}")


def _described(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device.type}"


def laid_out(x: torch.Tensor) -> str:
    """Return a tensor as `refused` describes it, with the strides and the address that are at fault."""
    return f"{_described(x)} with strides {list(x.stride())} at {x.data_ptr():#x}"
