"""`torch.ops.sm70.kv_cache_write`, `attention_decode` and `attention_prefill`: attention over a paged KV cache.

Shapes: key and value [tokens, Hkv, D]; query and out [tokens, Hq, D], Hq a multiple of Hkv; kv_cache [pages, 2,
page_size, Hkv, D] of any strides; block_table int32[sequences, max_pages]; seq_lens int32[sequences] with the new
rows, 0 for a padding sequence; query_start_loc int32[sequences + 1]; slot_mapping int64 of one number a token or
fewer, negative for padding; k_scale and v_scale of one element, used by FP8 only. `kv_dtype` is auto (the cache has
the type of the keys), fp8_e4m3 or fp8_e5m2 (the cache is uint8). Rows are causal and the new ones stand at the end of
their sequence. A row that sees nothing becomes zero; rows of `out` beyond query_start_loc[-1] stay as they are. Each
raises ValueError where shapes or types do not fit together.

Where the kernel of `kv_cache_write` serves (`is_packed`), rows are float16, D is 64, 128 or 256, page_size is a
multiple of 16, and pages have an order of their own (`attention.pack`), for all three operators: one without a kernel
runs in plain torch on that order.
"""

from __future__ import annotations

import torch

from sm70_kernels import dispatch
from sm70_kernels.attention import reference, table
from sm70_kernels.attention.kv_format import FP8, KV_DTYPES
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import sixteen_bytes, stride
from sm70_kernels.torch_library import FLOATS, laid_out, nothing, refused, register


def _check_cache(
    name: str, rows: torch.Tensor, kv_cache: torch.Tensor, kv_dtype: str, scales: tuple[torch.Tensor, torch.Tensor]
) -> None:
    if rows.dtype not in FLOATS or rows.ndim != 3:
        raise refused(name, "float16, bfloat16 or float32 rows [tokens, heads, head]", rows)
    if kv_dtype not in KV_DTYPES:
        raise refused(name, f"a kv_dtype of {', '.join(KV_DTYPES)}", repr(kv_dtype))
    if kv_cache.ndim != 5 or kv_cache.shape[1] != 2 or kv_cache.shape[4] != rows.shape[2]:
        raise refused(name, f"a kv_cache [pages, 2, page_size, kv_heads, {rows.shape[2]}]", kv_cache)
    if kv_dtype in FP8:
        if kv_cache.dtype != torch.uint8:
            raise refused(name, f"a uint8 kv_cache for {kv_dtype}", kv_cache)
        for scale in scales:
            if scale.numel() != 1 or not scale.is_floating_point():
                raise refused(name, "scales float32[1]", scale)
    elif kv_cache.dtype not in FLOATS:
        raise refused(name, "a floating-point kv_cache for auto", kv_cache)


def _type(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def is_packed(kv_cache: torch.Tensor) -> bool:
    """Say whether the pages of a cache lie in the order of the kernels, because that of `kv_cache_write` fills them."""
    return kv_cache.is_cuda and dispatch.kernel_serves("kv_cache_write")


def _check_gpu(name: str, rows: tuple[torch.Tensor, ...], kv_cache: torch.Tensor) -> None:
    """Check what only the kernels want: types, sizes and places in memory."""
    head, page_size, kv_heads = kv_cache.shape[4], kv_cache.shape[2], kv_cache.shape[3]
    if head not in table.HEADS:
        raise refused(name, f"heads of {', '.join(map(str, table.HEADS))} elements on a GPU", kv_cache)
    if not page_size or page_size % table.TILE:
        raise refused(name, f"a page_size that is a multiple of {table.TILE} on a GPU", kv_cache)
    for each in rows:
        if each.dtype != torch.float16:
            raise refused(name, "float16 rows on a GPU", each)
        if each.stride(2) != 1 or not sixteen_bytes((each,), (stride(each, 0), stride(each, 1))):
            raise refused(name, "heads on 16-byte boundaries", laid_out(each))
    size = kv_cache.element_size()
    apart = [stride(kv_cache, dimension) * size for dimension in (0, 1)]
    whole = (kv_cache.stride(4), stride(kv_cache, 3), stride(kv_cache, 2))
    wanted = (1, head if kv_heads > 1 else 0, kv_heads * head)
    if whole != wanted or any(each % 16 for each in (kv_cache.data_ptr(), *apart)):
        raise refused(name, "pages without gaps on 16-byte boundaries", laid_out(kv_cache))
    if kv_cache.dtype not in (torch.float16, torch.uint8):
        raise refused(name, "a float16 kv_cache for auto on a GPU", kv_cache)


def _check_write(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    name = "kv_cache_write"
    _check_cache(name, key, kv_cache, kv_dtype, (k_scale, v_scale))
    if key.shape[1] != kv_cache.shape[3]:
        raise refused(name, f"keys of {kv_cache.shape[3]} heads", key)
    if kv_dtype == "auto" and kv_cache.dtype != key.dtype:
        raise refused(name, f"a {_type(key)} kv_cache for auto", kv_cache)
    if value.shape != key.shape or value.dtype != key.dtype:
        raise refused(name, f"values like the keys, {_type(key)}{list(key.shape)}", value)
    if slot_mapping.dtype != torch.int64 or slot_mapping.ndim != 1 or slot_mapping.shape[0] > key.shape[0]:
        raise refused(name, f"a slot_mapping int64 of at most {key.shape[0]} rows", slot_mapping)


def _kv_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    _check_write(key, value, kv_cache, slot_mapping, kv_dtype, k_scale, v_scale)
    reference.kv_cache_write(key, value, kv_cache, slot_mapping, kv_dtype, k_scale, v_scale)


def _kv_cache_write_on_gpu(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    _check_write(key, value, kv_cache, slot_mapping, kv_dtype, k_scale, v_scale)
    _check_gpu("kv_cache_write", (key, value), kv_cache)
    if not slot_mapping.is_contiguous():
        raise refused("kv_cache_write", "a packed slot_mapping", laid_out(slot_mapping))
    tokens, size = slot_mapping.shape[0], kv_cache.element_size()
    if not tokens:
        return
    page_size, kv_heads, head = kv_cache.shape[2:]
    apart = (stride(kv_cache, 0) * size, stride(kv_cache, 1) * size)
    rows = (stride(key, 0), stride(key, 1), stride(value, 0), stride(value, 1))
    launch(
        table.write(table.FORMATS[kv_dtype], head),
        (-(-tokens // table.TILE), kv_heads, 1),
        (kv_cache, key, value, slot_mapping, k_scale, v_scale, tokens, page_size, *apart, *rows),
    )


def _check_attention(
    name: str,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    kv_dtype: str,
    scales: tuple[torch.Tensor, torch.Tensor],
) -> None:
    _check_cache(name, query, kv_cache, kv_dtype, scales)
    if query.shape[1] % kv_cache.shape[3]:
        raise refused(name, f"a multiple of {kv_cache.shape[3]} query heads", query)
    if out.shape != query.shape or out.dtype not in FLOATS:
        raise refused(name, f"a floating-point out {list(query.shape)}", out)
    sequences = seq_lens.shape[0]
    if seq_lens.dtype != torch.int32 or seq_lens.ndim != 1:
        raise refused(name, "seq_lens int32[sequences]", seq_lens)
    if block_table.dtype != torch.int32 or block_table.ndim != 2 or block_table.shape[0] != sequences:
        raise refused(name, f"a block_table int32[{sequences}, max_pages]", block_table)
    if query_start_loc.dtype != torch.int32 or query_start_loc.shape != (sequences + 1,):
        raise refused(name, f"query_start_loc int32[{sequences + 1}]", query_start_loc)


def _check_launch(
    name: str,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Check what only the kernels that attend want."""
    _check_gpu(name, (query, out), kv_cache)
    if block_table.stride(1) != 1 and block_table.shape[1] != 1:
        raise refused(name, "a block_table packed in its rows", laid_out(block_table))
    if not (seq_lens.is_contiguous() and query_start_loc.is_contiguous()):
        raise refused(name, "packed seq_lens and query_start_loc", laid_out(seq_lens))


def _pieces(kv_cache: torch.Tensor) -> tuple[int, int, int]:
    """Return from page to page, KV head to KV head, and keys to values, in pieces of 16 bytes."""
    size = kv_cache.element_size()
    of_head = kv_cache.shape[2] * kv_cache.shape[4] * size // 16
    return stride(kv_cache, 0) * size // 16, of_head, stride(kv_cache, 1) * size // 16


def _attention_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    where = (query, kv_cache, block_table, seq_lens, query_start_loc, out)
    _check_attention("attention_decode", *where, kv_dtype, (k_scale, v_scale))
    reference.attention_decode(*where, scale, kv_dtype, k_scale, v_scale, packed=is_packed(kv_cache))


def _attention_decode_on_gpu(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    where = (query, kv_cache, block_table, seq_lens, query_start_loc, out)
    if kv_cache.is_cuda and not is_packed(kv_cache):
        dispatch.count("attention_decode", dispatch.REFERENCE, query.shape[0])
        _attention_decode(*where, scale, kv_dtype, k_scale, v_scale)
        return
    dispatch.count("attention_decode", dispatch.KERNEL, query.shape[0])
    _check_attention("attention_decode", *where, kv_dtype, (k_scale, v_scale))
    if query.shape[0] and seq_lens.shape[0]:
        sequences = seq_lens.shape[0]
        kv_heads, head = kv_cache.shape[3:]
        tiles = table.row_tiles(query.shape[0], sequences, query.shape[1] // kv_heads)
        decode(*where, scale, kv_dtype, k_scale, v_scale, table.variant(sequences, tiles, head, _WAY.dual_from))


def decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    variant: table.Variant,
) -> None:
    """Attend by the launches of a variant; all of them give the same bits. Waits for nothing: may be captured."""
    name = "attention_decode"
    _check_launch(name, query, kv_cache, block_table, seq_lens, query_start_loc, out)
    tokens, heads, head = query.shape
    page_size, kv_heads = kv_cache.shape[2:4]
    sequences, group = seq_lens.shape[0], heads // kv_heads
    most, least = table.partitions(sequences, kv_heads, _WAY.split)
    partials: torch.Tensor | int = 0
    states: torch.Tensor | int = 0
    if variant == table.DUAL:
        dispatch.count("attention_decode_dual", dispatch.KERNEL, tokens)
    if most > 1:
        dispatch.count("attention_reduce", dispatch.KERNEL, tokens)
        partials = torch.empty((most, tokens, heads, head), dtype=torch.float32, device=query.device)
        states = torch.empty((most, tokens, heads, 2), dtype=torch.float32, device=query.device)
    rows = (stride(query, 0), stride(query, 1), stride(out, 0), stride(out, 1))
    launch(
        table.decode(table.FORMATS[kv_dtype], head, table.row_tiles(tokens, sequences, group), variant),
        (most, kv_heads, sequences),
        (
            *(out, partials, states, query, kv_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale),
            *(scale, group, tokens, least, page_size // table.TILE, stride(block_table, 0), *_pieces(kv_cache), *rows),
        ),
    )
    if most > 1:
        sizes = (sequences, tokens, most, least, stride(out, 0), stride(out, 1))
        launch(table.reduction(head), (tokens, heads, 1), (out, partials, states, seq_lens, query_start_loc, *sizes))


class _Way:
    """How decode attention is launched in this process."""

    def __init__(self) -> None:
        self.dual_from: int | None = table.DUAL_FROM
        self.split = True


_WAY = _Way()


def serve_dual_from(sequences: int | None) -> None:
    """Let the variant with two resident thread blocks serve from so many sequences on, or never.

    No result changes by a bit. Graphs that are captured already keep what they have. Raises ValueError below 1.
    """
    if sequences is not None and sequences < 1:
        raise ValueError(f"the dual variant from {sequences} sequences on: at least 1 is wanted")
    _WAY.dual_from = sequences


def split_contexts(split: bool) -> None:
    """Say whether a context is cut into partitions, each with a thread block of its own, or goes through one.

    Graphs that are captured already keep what they have.
    """
    _WAY.split = split


def _attention_prefill(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    where = (query, kv_cache, block_table, seq_lens, query_start_loc, out)
    _check_attention("attention_prefill", *where, kv_dtype, (k_scale, v_scale))
    packed = is_packed(kv_cache)
    if packed:
        _check_gpu("attention_prefill", (query, out), kv_cache)
    reference.attention_prefill(*where, scale, kv_dtype, k_scale, v_scale, packed=packed)


def _attention_prefill_on_gpu(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    name, where = "attention_prefill", (query, kv_cache, block_table, seq_lens, query_start_loc, out)
    tokens, sequences = query.shape[0], seq_lens.shape[0]
    if kv_cache.is_cuda and not is_packed(kv_cache):
        dispatch.count(name, dispatch.REFERENCE, tokens)
        _attention_prefill(*where, scale, kv_dtype, k_scale, v_scale)
        return
    dispatch.count(name, dispatch.KERNEL, tokens)
    _check_attention(name, *where, kv_dtype, (k_scale, v_scale))
    _check_launch(name, query, kv_cache, block_table, seq_lens, query_start_loc, out)
    if not tokens or not sequences:
        return
    page_size, kv_heads, head = kv_cache.shape[2:]
    group = query.shape[1] // kv_heads
    rows = (stride(query, 0), stride(query, 1), stride(out, 0), stride(out, 1))
    launch(
        table.prefill(table.FORMATS[kv_dtype], head),
        (table.prefill_blocks(tokens, sequences, group), kv_heads, 1),
        (
            *(out, query, kv_cache, block_table, seq_lens, query_start_loc, k_scale, v_scale, scale, group, sequences),
            *(page_size // table.TILE, stride(block_table, 0), *_pieces(kv_cache), *rows),
        ),
    )


register(
    "kv_cache_write(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping, str kv_dtype, Tensor k_scale, "
    "Tensor v_scale) -> ()",
    cuda=_kv_cache_write_on_gpu,
    cpu=_kv_cache_write,
    fake=nothing,
    mutates=("kv_cache",),
)
for _name, _on_gpu, _attention in (
    ("attention_decode", _attention_decode_on_gpu, _attention_decode),
    ("attention_prefill", _attention_prefill_on_gpu, _attention_prefill),
):
    register(
        f"{_name}(Tensor query, Tensor kv_cache, Tensor block_table, Tensor seq_lens, Tensor query_start_loc, "
        "Tensor(a!) out, float scale, str kv_dtype, Tensor k_scale, Tensor v_scale) -> ()",
        cuda=_on_gpu,
        cpu=_attention,
        fake=nothing,
        mutates=("out",),
        counts_itself=True,
    )
