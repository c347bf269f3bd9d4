"""The norms on a CPU: equal to upstream's layers, and what they would launch on a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from sm70_kernels.norm import operator as norms
from tests.kernels.recorded_launches import Launches, halves

if TYPE_CHECKING:
    from collections.abc import Callable

UPSTREAM = """
import types, torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNormGated
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from sm70_kernels.proof.prove import relative_error
from sm70_kernels.norm import reference as ours

torch.manual_seed(0)
x, residual, w = torch.randn(5, 320).half(), 3 * torch.randn(5, 320), torch.randn(320).half()
theirs = GemmaRMSNorm._forward_static_no_residual(w, 1e-6, x)
assert torch.equal(ours.rms_norm(x, w, 1e-6), theirs)
for carried in (residual, residual.half()):
    theirs = GemmaRMSNorm._forward_static_with_residual(w, 1e-6, x, carried)
    for a, b in zip(ours.add_rms_norm(x, carried, w, 1e-6), theirs, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)

layer = types.SimpleNamespace(weight=w, eps=1e-6, group_size=None, norm_before_gate=True)
z = torch.randn(5, 320).half()
assert relative_error(ours.gated_rms_norm(x, z, w, 1e-6), RMSNormGated.forward_native(layer, x, z)) < 1e-3

with set_current_vllm_config(VllmConfig()):
    rope = MRotaryEmbedding(256, 64, 64, 1e7, True, torch.float16, [11, 11, 10], True)
q, k, flat = torch.randn(5, 6, 256).half(), torch.randn(5, 1, 256).half(), torch.zeros(256).half()
for positions in (torch.randint(64, (3, 5)), torch.randint(64, (5,))):
    normed = [ours.rms_norm(heads, flat, 1e-6).reshape(5, -1) for heads in (q, k)]
    theirs = rope.forward_native(positions, *normed)
    mine = ours.qk_norm_mrope(q, k, positions, flat, flat, rope.cos_sin_cache, (11, 11, 10), 1e-6)
    for a, b in zip(mine, theirs, strict=True):
        # Upstream rounds to FP16 after the norm and after each product.
        assert relative_error(a.reshape(5, -1), b) < 1e-3
"""


@pytest.mark.engine
def test_the_references_are_upstreams_layers() -> None:
    done = subprocess.run([sys.executable, "-c", UPSTREAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch, norms)


def test_rows_are_read_16_bytes_at_a_time_where_they_may_be(launches: Launches) -> None:
    norms._rms_norm(halves(3, 5120), halves(5120), 1e-6)
    norms._rms_norm(halves(3, 5128)[:, :5120], halves(5120), 1e-6)
    norms._rms_norm(halves(3, 5121)[:, :5120], halves(5120), 1e-6)
    norms._rms_norm(halves(3, 5128)[:, 1:5121], halves(5120), 1e-6)
    norms._rms_norm(halves(1, 5121)[:, :5120], halves(5120), 1e-6)
    wide, single = (
        "rms_norm-threads320-vectors2-width8-residual0-rows1",
        "rms_norm-threads512-vectors16-width1-residual0-rows1",
    )
    assert launches.names == [wide, wide, single, single, wide]
    assert [grid for _, grid, *_ in launches] == [3, 3, 3, 3, 1]
    strides = [arguments[7] for *_, arguments in launches]
    assert strides == [5120, 5128, 5121, 5128, 0], "a row alone has no stride"


def test_the_residual_picks_the_kernel(launches: Launches) -> None:
    for residual in (halves(2, 3, 5120), halves(2, 3, 5120).float()):
        out, total = norms._add_rms_norm(halves(2, 3, 5120), residual, halves(5120), 1e-6)
        assert out.shape == total.shape == (2, 3, 5120)
        assert total.dtype == torch.float32
    assert [name[-15:] for name in launches.names] == ["residual1-rows1", "residual2-rows1"]
    assert [grid for _, grid, *_ in launches] == [6, 6]


@pytest.mark.parametrize(("tokens", "heads", "blocks"), [(1, 12, 2), (1, 1, 1), (8, 12, 12), (3, 48, 18), (2, 4, 1)])
def test_the_last_block_of_heads_may_be_part_full(launches: Launches, tokens: int, heads: int, blocks: int) -> None:
    x = halves(tokens, heads, 128)
    norms._gated_rms_norm(x, x, halves(128), 1e-6)
    assert launches.names == ["gated_rms_norm-threads128-lanes16"]
    assert launches[0][1] == blocks


def test_queries_are_read_between_their_gates(launches: Launches) -> None:
    projected = halves(4, (2 * 6 + 2) * 256)
    q = projected[:, : 12 * 256].view(4, 6, 512)[..., :256]
    k = projected[:, 12 * 256 : 13 * 256].view(4, 1, 256)
    positions = torch.zeros(3, 4, dtype=torch.int64)
    weight, cache = halves(256), halves(64, 64)
    norms._qk_norm_mrope(q, k, positions, weight, weight, cache, (11, 11, 10), 1e-6)
    norms._qk_norm_mrope(q, k, positions[0], weight, weight, cache, (11, 11, 10), 1e-6)
    assert launches.names == ["qk_norm_mrope-threads128-lanes16-rotary64"] * 2
    assert launches[0][1] == 4
    assert launches[0][2][8:] == (4, 6, 1, 64, 11, 10, 14 * 256, 512, 14 * 256, 0, 4, 1e-6)
    assert launches[1][2][-2] == 0, "one row of positions serves all three axes"


def test_many_rows_are_taken_two_at_once(launches: Launches) -> None:
    norms._rms_norm(halves(1025, 64), halves(64), 1e-6)
    norms._add_rms_norm(halves(1025, 64), halves(1025, 64), halves(64), 1e-6)
    assert [(name.split("-")[-1], grid) for name, (_, grid, *_) in zip(launches.names, launches, strict=True)] == [
        ("rows2", 513),
        ("rows1", 1025),
    ]


def test_nothing_is_launched_for_no_tokens(launches: Launches) -> None:
    assert norms._rms_norm(halves(0, 5120), halves(5120), 1e-6).shape == (0, 5120)
    assert norms._add_rms_norm(halves(0, 5120), halves(0, 5120), halves(5120), 1e-6)[1].dtype == torch.float32
    assert norms._gated_rms_norm(halves(0, 12, 128), halves(0, 12, 128), halves(128), 1e-6).shape == (0, 12, 128)
    none = torch.zeros(3, 0, dtype=torch.int64)
    heads, weight, cache = halves(0, 1, 256), halves(256), halves(9, 64)
    q, k = norms._qk_norm_mrope(heads, heads, none, weight, weight, cache, (11, 11, 10), 1e-6)
    assert q.shape == k.shape == (0, 1, 256)
    assert not launches


W, X = halves(64), halves(2, 64)
HEADS, CACHE, PLACES = halves(2, 3, 256), halves(9, 64), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: norms._rms_norm(X.float(), W, 0.0), r"sm70.rms_norm wants float16 rows, not float32\[2, 64\] on cpu"),
        (lambda: norms._rms_norm(X, halves(63), 0.0), r"wants a packed weight float16\[64\], not float16\[63\] on cpu"),
        (lambda: norms._rms_norm(X, W.float(), 0.0), r"wants a packed weight float16\[64\], not float32\[64\] on cpu"),
        (lambda: norms._rms_norm(halves(1, 16385), halves(16385), 0.0), "no kernel for rows of 16385 elements, unalig"),
        (lambda: norms._rms_norm(halves(1, 16392), halves(16392), 0.0), "has no kernel for rows of 16392 elements$"),
        (
            lambda: norms._add_rms_norm(X, X[:1], W, 0.0),
            r"wants a residual float16 or float32\[2, 64\], not float16\[1",
        ),
        (lambda: norms._gated_rms_norm(X, X, W, 0.0), r"wants x float16\[tokens, heads, head\], not float16\[2, 64\]"),
        (lambda: norms._gated_rms_norm(HEADS, HEADS[:1], halves(256), 0.0), r"wants z float16\[2, 3, 256\]"),
        (lambda: norms._gated_rms_norm(X[:, None, :24], X[:, None, :24], W[:24], 0.0), "no kernel for heads of 24 ele"),
        (
            lambda: norms._qk_norm_mrope(
                HEADS, HEADS, PLACES.int(), halves(256), halves(256), CACHE, (11, 11, 10), 0.0
            ),
            r"wants positions int64\[2\] or \[3, 2\], not int32\[2\]",
        ),
        (
            lambda: norms._qk_norm_mrope(HEADS, HEADS, PLACES, halves(256), halves(256), CACHE, (16, 24, 24), 0.0),
            r"wants three sections of 32, not \(16, 24, 24\)",
        ),
        (
            lambda: norms._qk_norm_mrope(
                HEADS, HEADS, PLACES, halves(256), halves(256), halves(9, 88), (15, 15, 14), 0.0
            ),
            "no kernel for heads of 256 elements of which 88 are turned",
        ),
    ],
)
def test_what_no_kernel_serves_is_refused(launches: Launches, call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
    assert not launches
