"""The attention operators as torch and vLLM's compiler see them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import sm70_kernels.attention.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.torch_library import has_kernel
from tests.kernels.attention.paged_caches import PagedCache, Sizes, integers

NAMES = ("kv_cache_write", "attention_decode", "attention_prefill")


def arguments_of(name: str, kv_dtype: str = "auto") -> dict[str, Any]:
    cache = PagedCache(Sizes(kv_dtype=kv_dtype), (20, 40))
    scales = {"kv_dtype": kv_dtype, "k_scale": cache.k_scale, "v_scale": cache.v_scale}
    if name == "kv_cache_write":
        key, value = cache.normal(4, 2, 32), cache.normal(4, 2, 32)
        slots = torch.tensor([5, -1, 40, 2])
        return {"key": key, "value": value, "kv_cache": cache.pool[:, :2], "slot_mapping": slots, **scales}
    return {
        "query": cache.query(4),
        "kv_cache": cache.kv_cache,
        "block_table": cache.block_table,
        "seq_lens": cache.seq_lens,
        "query_start_loc": integers(0, 3, 4),
        "out": torch.zeros(4, 6, 32).half(),
        "scale": 0.25,
        **scales,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_legal_for_torch_compile(name: str, kv_dtype: str) -> None:
    function, changed = getattr(torch.ops.sm70, name), "kv_cache" if name == "kv_cache_write" else "out"
    # opcheck compares a cache's copies with torch.equal, to which NaN is not equal.
    checked = arguments_of(name, kv_dtype)
    checked["kv_cache"] = checked["kv_cache"].nan_to_num()
    torch.library.opcheck(function.default, (), checked)

    def around(**arguments: Any) -> torch.Tensor:
        first = next(iter(arguments))
        function(**arguments | {first: arguments[first] * 2})
        return arguments[changed] + 1

    compiled = torch.compile(around, fullgraph=True, backend="aot_eager", dynamic=True)
    eager, traced = arguments_of(name, kv_dtype), arguments_of(name, kv_dtype)
    assert torch.equal(around(**eager).nan_to_num(), compiled(**traced).nan_to_num())
    assert torch.equal(eager[changed].nan_to_num(), traced[changed].nan_to_num())


def test_which_operators_have_a_kernel() -> None:
    assert {name for name in NAMES if has_kernel(name)} == {"kv_cache_write", *ATTEND}


WRITE, ATTEND = ("kv_cache_write",), ("attention_decode", "attention_prefill")


@pytest.mark.parametrize(
    ("names", "wrong", "wanted"),
    [
        (
            WRITE,
            {"key": torch.zeros(4, 64)},
            "float16, bfloat16 or float32 rows [tokens, heads, head], not float32[4, 64]",
        ),
        (WRITE, {"key": torch.zeros(4, 3, 32)}, "keys of 2 heads, not float32[4, 3, 32]"),
        (WRITE, {"value": torch.zeros(4, 2, 32)}, "values like the keys, float16[4, 2, 32], not float32[4, 2, 32]"),
        (
            WRITE,
            {"key": torch.zeros(4, 2, 32), "value": torch.zeros(4, 2, 32)},
            "a float32 kv_cache for auto, not float16[8, 2, 16, 2, 32]",
        ),
        (WRITE, {"slot_mapping": torch.zeros(5).long()}, "a slot_mapping int64 of at most 4 rows, not int64[5]"),
        (WRITE, {"slot_mapping": integers(1)}, "a slot_mapping int64 of at most 4 rows, not int32[1]"),
        (
            (*WRITE, *ATTEND),
            {"kv_cache": torch.zeros(2, 16, 2, 32)},
            "a kv_cache [pages, 2, page_size, kv_heads, 32], not float32[2, 16, 2, 32]",
        ),
        ((*WRITE, *ATTEND), {"kv_dtype": "fp8"}, "a kv_dtype of auto, fp8_e4m3, fp8_e5m2, not 'fp8'"),
        ((*WRITE, *ATTEND), {"kv_dtype": "fp8_e4m3"}, "a uint8 kv_cache for fp8_e4m3, not float16[8, 2, 16, 2, 32]"),
        (
            (*WRITE, *ATTEND),
            {"kv_cache": torch.zeros(8, 2, 16, 2, 32, dtype=torch.uint8)},
            "a floating-point kv_cache for auto, not uint8[8, 2, 16, 2, 32]",
        ),
        (
            (*WRITE, *ATTEND),
            {
                "kv_cache": torch.zeros(8, 2, 16, 2, 32, dtype=torch.uint8),
                "kv_dtype": "fp8_e5m2",
                "v_scale": torch.ones(2),
            },
            "scales float32[1], not float32[2]",
        ),
        (ATTEND, {"query": torch.zeros(4, 5, 32)}, "a multiple of 2 query heads, not float32[4, 5, 32]"),
        (ATTEND, {"out": torch.zeros(3, 6, 32)}, "a floating-point out [4, 6, 32], not float32[3, 6, 32]"),
        (ATTEND, {"seq_lens": torch.zeros(2)}, "seq_lens int32[sequences], not float32[2]"),
        (ATTEND, {"block_table": torch.zeros(1, 2).int()}, "a block_table int32[2, max_pages], not int32[1, 2]"),
        (ATTEND, {"query_start_loc": torch.zeros(2).int()}, "query_start_loc int32[3], not int32[2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_fit_is_refused(names: tuple[str, ...], wrong: dict[str, Any], wanted: str) -> None:
    for name in names:
        with pytest.raises(ValueError, match="wants") as refused:
            getattr(torch.ops.sm70, name)(**arguments_of(name) | wrong)
        assert str(refused.value).removesuffix(" on cpu") == f"sm70.{name} wants {wanted}"


SPLIT = """
import torch
from vllm.compilation.backends import split_graph
import sm70_kernels.attention.operator, sm70_kernels.gdn.operator

def step(query, cache, table, lengths, starts, one):
    out = torch.empty_like(query)
    torch.ops.sm70.attention_decode(query + 1, cache, table, lengths, starts, out, 1.0, "auto", one, one)
    return out * 2

seen = []
def backend(graph, _):
    whole, parts = split_graph(graph, ["sm70::attention_decode"])
    seen.extend(part.is_splitting_graph for part in parts)
    return whole

ints = lambda *x: torch.tensor(x, dtype=torch.int32)
given = (torch.ones(2, 2, 4), torch.ones(3, 2, 16, 1, 4), ints(1, 2)[:, None], ints(1, 9), ints(0, 1, 2), torch.ones(1))
assert torch.equal(torch.compile(step, fullgraph=True, backend=backend)(*given), torch.full((2, 2, 4), 2.0))
assert seen == [False, True, False], seen
"""


@pytest.mark.engine
def test_vllm_splits_a_graph_at_an_operator() -> None:
    done = subprocess.run([sys.executable, "-c", SPLIT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
