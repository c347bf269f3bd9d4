"""What serves an operator, and what is counted of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest
import torch

from sm70_kernels import dispatch
from sm70_kernels.torch_library import like_first

if TYPE_CHECKING:
    from collections.abc import Iterator

X = torch.ones(3, 8)


def kernel(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@pytest.fixture
def no_references() -> Iterator[None]:
    yield
    dispatch.use_references(())


@pytest.mark.usefixtures("no_references")
def test_a_kernel_serves_until_the_reference_is_asked_for() -> None:
    run = dispatch.on_cuda("doubled", kernel, reference, counts_itself=False)
    with dispatch.apart() as counts:
        assert torch.equal(run(X), X * 2)
        dispatch.use_references(["doubled"])
        assert torch.equal(run(X), X * 3)
        assert torch.equal(run(X[:1]), X[:1] * 3)
        dispatch.use_references(["another"])
        assert torch.equal(run(X), X * 2)
    assert counts == {("doubled", "kernel"): [2, 6], ("doubled", "reference"): [2, 4]}


@pytest.mark.usefixtures("no_references")
def test_a_kernel_that_counts_itself_is_not_counted_twice() -> None:
    def ways(x: torch.Tensor) -> torch.Tensor:
        dispatch.count("ways", dispatch.EXPANSION, x.shape[0])
        return x

    run = dispatch.on_cuda("ways", ways, reference, counts_itself=True)
    with dispatch.apart() as counts:
        run(X)
    assert counts == {("ways", "expansion"): [1, 3]}


def test_what_is_counted_apart_is_not_counted() -> None:
    run = dispatch.by_reference("apart_only", like_first)
    with dispatch.apart() as outer:
        run(X)
        with dispatch.apart() as inner:
            run(X)
        run(X)
    assert (outer, inner) == ({("apart_only", "reference"): [2, 6]}, {("apart_only", "reference"): [1, 3]})
    assert ("apart_only", "reference") not in dispatch.counted()


def test_every_operator_of_the_library_is_counted() -> None:
    importlib.import_module("sm70_kernels.activation.operator")
    with dispatch.apart() as counts:
        torch.ops.sm70.silu_and_mul(torch.ones(5, 64).half())
    assert counts == {("silu_and_mul", "reference"): [1, 5]}


def test_rows_are_served_without_expansion_where_it_is_not_allowed() -> None:
    from sm70_kernels.dense import choice, table

    layer = table.layer_of(256, 256, False)
    assert choice.expands(layer, 8192)
    choice.allow_expansion(False)
    try:
        assert not choice.expands(layer, 8192)
    finally:
        choice.allow_expansion(True)


@pytest.mark.parametrize("gated", [False, True])
def test_the_dense_reference_in_slabs_is_the_reference(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the weight is multiplied out in parts; the device `meta` stands for one in what decides that."""
    from sm70_kernels.dense import pack, reference

    n, k = 200, 256
    numbers = torch.Generator().manual_seed(3)
    weight = (torch.randn((2 if gated else 1) * n, k, generator=numbers) * 30).to(torch.float8_e4m3fn)
    scale = torch.rand(weight.shape[0], 1, generator=numbers) * 1e-3
    packed = pack.pack_channels(weight, scale, gated)
    x = torch.randn(5, k, generator=numbers).half()
    function = reference.dense_w8a16_silu_mul if gated else reference.dense_w8a16
    arguments = (x, packed.weight, packed.scale, packed.counters, n, k, packed.unit)
    whole = function(*arguments)
    assert whole.shape == (5, n)
    monkeypatch.setattr(reference, "SLAB_BYTES", 2 * 2 * 32 * k * 4)
    elsewhere = list(reference._slabs(packed.weight.to("meta"), packed.scale.to("meta"), n, 2 if gated else 1))
    assert len(elsewhere) > 1
    assert sum(columns for *_, columns in elsewhere) == n
    starts = [0]
    for tiles, _, _ in elsewhere:
        starts.append(starts[-1] + tiles.shape[0])
    parts = [
        (packed.weight[a:b], packed.scale[a:b], columns)
        for a, b, (_, _, columns) in zip(starts, starts[1:], elsewhere, strict=False)
    ]
    monkeypatch.setattr(reference, "_slabs", lambda *_: iter(parts))
    in_slabs = function(*arguments)
    assert in_slabs.shape == whole.shape
    assert float((in_slabs.double() - whole.double()).norm() / whole.double().norm()) < 1e-3
