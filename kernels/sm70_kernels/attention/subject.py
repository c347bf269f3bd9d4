"""Attention and the KV cache's writer under proof. Caches hold what the format can hold; pages are shuffled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels.attention import reference
from sm70_kernels.attention.cases import FORMATS
from sm70_kernels.attention.kv_format import encoded
from sm70_kernels.attention.operator import is_packed
from sm70_kernels.attention.pack import pack, unpack
from sm70_kernels.launch.outputs import new_like
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.cases import Case

GATE = 2e-3
K_SCALE, V_SCALE = 0.5, 0.0625


def _scales(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([K_SCALE], device=device), torch.tensor([V_SCALE], device=device)


def _cache(case: Case, make: Maker, pages: int, device: torch.device) -> torch.Tensor:
    sizes, kv_dtype = case.sizes, FORMATS[case.sizes["format"]]
    values = make.normal(pages, 2, sizes["page"], sizes["kv_heads"], sizes["head"])
    for half, scale in enumerate(_scales(device)):
        values[:, half] *= scale.half()
    if kv_dtype == "auto":
        return values
    return torch.stack([encoded(values[:, half], kv_dtype, scale) for half, scale in enumerate(_scales(device))], dim=1)


def _written(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    tokens = sizes["tokens"]
    pages = -(-2 * tokens // sizes["page"])
    slots = make.whole(pages * sizes["page"], below=2**31).argsort()[:tokens]
    slots[tokens // 2] = -1
    # Some of them are beyond E4M3's greatest value.
    key, value = (make.normal(tokens, sizes["kv_heads"], sizes["head"], spread=99.0) for _ in range(2))
    return key, value, _cache(case, make, pages, device), slots, FORMATS[sizes["format"]], *_scales(device)


def write(function: Callable[..., None], packed: bool, *arguments: Any) -> None:  # noqa: ANN401 - an operator's
    """Let `function` write into the cache, which it is given `packed` or in the order of its shape."""
    key, value, kv_cache, *rest = arguments
    if not packed:
        function(*arguments)
        return
    copy = new_like(kv_cache).copy_(pack(kv_cache))
    function(key, value, copy, *rest)
    kv_cache.copy_(unpack(copy))


def _write(*arguments: Any) -> None:  # noqa: ANN401 - an operator's
    write(torch.ops.sm70.kv_cache_write, is_packed(arguments[2]), *arguments)


def _write_bytes(case: Case) -> int:
    sizes = case.sizes
    stored = 2 if FORMATS[sizes["format"]] == "auto" else 1
    return sizes["tokens"] * (2 * sizes["kv_heads"] * sizes["head"] * (2 + stored) + 8)


def _lengths(case: Case) -> list[int]:
    sizes = case.sizes
    return [max(sizes["rows"], sizes["length"] - 7 * number) for number in range(sizes["sequences"])]


def _attended(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    lengths, rows = _lengths(case), sizes["rows"]
    counts = [-(-length // sizes["page"]) for length in lengths]
    order = make.whole(sum(counts), below=2**31).argsort().int()
    table = torch.zeros(len(lengths), max(counts) + 1, dtype=torch.int32, device=device)
    for number, pages in enumerate(order.split(counts)):
        table[number, : counts[number]] = pages
    query = make.normal(rows * len(lengths), sizes["kv_heads"] * sizes["group"], sizes["head"])
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=device) * rows
    where = (table, torch.tensor(lengths, dtype=torch.int32, device=device), starts)
    cache = _cache(case, make, sum(counts), device)
    return query, cache, *where, sizes["head"] ** -0.5, FORMATS[sizes["format"]], *_scales(device)


def attend(function: Callable[..., None], packed: bool, *arguments: Any) -> torch.Tensor:  # noqa: ANN401 - an operator's
    """Return what `function` writes; it is given the cache `packed` or in the order of its shape."""
    query, kv_cache, *where, scale, kv_dtype, k_scale, v_scale = arguments
    out = new_like(query)
    held = new_like(kv_cache).copy_(pack(kv_cache)) if packed else kv_cache
    function(query, held, *where, out, scale, kv_dtype, k_scale, v_scale)
    return out


def _attend(function: Callable[..., None], *arguments: Any) -> torch.Tensor:  # noqa: ANN401 - an operator's
    return attend(function, is_packed(arguments[1]), *arguments)


def _attend_bytes(case: Case) -> int:
    sizes = case.sizes
    stored = 2 if FORMATS[sizes["format"]] == "auto" else 1
    rows = 2 * 2 * sizes["rows"] * sizes["sequences"] * sizes["kv_heads"] * sizes["group"] * sizes["head"]
    return rows + 2 * sum(_lengths(case)) * sizes["kv_heads"] * sizes["head"] * stored


SUBJECTS = (
    Subject(
        operator="kv_cache_write",
        kernels=("kv_cache_write",),
        inputs=_written,
        run=_write,
        reference=reference.kv_cache_write,
        moved_bytes=_write_bytes,
        gate=0.0,
        mutates=(2,),
    ),
    *(
        Subject(
            operator=name,
            kernels=kernels,
            inputs=_attended,
            run=partial(_attend, getattr(torch.ops.sm70, name)),
            reference=partial(attend, getattr(reference, name), False),
            moved_bytes=_attend_bytes,
            gate=GATE,
        )
        for name, kernels in (
            ("attention_decode", ("attention_decode", "attention_reduce")),
            ("attention_prefill", ("attention_prefill",)),
        )
    ),
)
