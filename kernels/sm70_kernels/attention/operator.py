"""`torch.ops.sm70.kv_cache_write`, `attention_decode` and `attention_prefill`: attention over a paged KV cache.

Shapes: key and value [tokens, Hkv, D]; query and out [tokens, Hq, D], Hq a multiple of Hkv; kv_cache [pages, 2,
page_size, Hkv, D] of any strides; block_table int32[sequences, max_pages]; seq_lens int32[sequences] with the new
rows, 0 for a padding sequence; query_start_loc int32[sequences + 1]; slot_mapping int64 of one number a token or
fewer, negative for padding; k_scale and v_scale of one element, used by FP8 only. `kv_dtype` is auto (the cache has
the type of the keys), fp8_e4m3 or fp8_e5m2 (the cache is uint8). Rows are causal and the new ones stand at the end of
their sequence. A row that sees nothing becomes zero; rows of `out` beyond query_start_loc[-1] stay as they are. Each
raises ValueError where shapes or types do not fit together.
"""

from __future__ import annotations

import torch

from sm70_kernels.attention import reference
from sm70_kernels.attention.kv_format import FP8, KV_DTYPES
from sm70_kernels.torch_library import refused, register

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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


def _kv_cache_write(
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
    reference.kv_cache_write(key, value, kv_cache, slot_mapping, kv_dtype, k_scale, v_scale)


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
    reference.attention_decode(*where, scale, kv_dtype, k_scale, v_scale)


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
    reference.attention_prefill(*where, scale, kv_dtype, k_scale, v_scale)


def _nothing(*_: object) -> None:
    """Be the fake implementation of an operator that only changes its arguments."""


register(
    "kv_cache_write(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping, str kv_dtype, Tensor k_scale, "
    "Tensor v_scale) -> ()",
    cuda=None,
    cpu=_kv_cache_write,
    fake=_nothing,
    mutates=("kv_cache",),
)
for _name, _attention in (("attention_decode", _attention_decode), ("attention_prefill", _attention_prefill)):
    register(
        f"{_name}(Tensor query, Tensor kv_cache, Tensor block_table, Tensor seq_lens, Tensor query_start_loc, "
        "Tensor(a!) out, float scale, str kv_dtype, Tensor k_scale, Tensor v_scale) -> ()",
        cuda=None,
        cpu=_attention,
        fake=_nothing,
        mutates=("out",),
    )
