"""`sm70.gdn_decode`: one token a sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sm70_kernels.gdn.operator  # noqa: F401 - registers torch.ops.sm70
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, integers, relative

SIZES = (
    Sizes(),
    Sizes(key_heads=1, value_heads=1, key_head=32, value_head=32),
    Sizes(key_heads=4, value_heads=4, key_head=8, value_head=24, width=2),
    Sizes(width=6, dtype=torch.bfloat16),
    Sizes(dtype=torch.float32, state_dtype=torch.float16),
    Sizes(rows=4),
)
ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_sequence_takes_one_token(sizes: Sizes) -> None:
    layer = GdnLayer(sizes)
    slots = (3, 0, 5)
    layer.poison(*slots)
    for _ in range(3):
        inputs, out = layer.inputs(3), layer.out(3)
        wanted = [exact(layer, tuple(x[i : i + 1] for x in inputs), layer.memory(slot)) for i, slot in enumerate(slots)]
        layer.decode(inputs, integers(*slots), out)
        for number, (slot, (output, memory)) in enumerate(zip(slots, wanted, strict=True)):
            seen = layer.memory(slot)
            assert relative(out[number], output[0]) < ROUNDING[sizes.dtype]
            assert relative(seen.state, memory.state) < ROUNDING[sizes.state_dtype]
            assert torch.equal(seen.history, memory.history)
    unused = [slot for slot in range(sizes.slots) if slot not in slots]
    assert bool(layer.ssm_state[unused].isnan().all())
    assert bool(layer.conv_state[unused].isnan().all())


@pytest.mark.parametrize("slots", [(-1, 0, -1, 4, -1), (-1, -1, 2), (4, -1), (0, -1, -1)], ids=str)
def test_a_padding_row_touches_nothing_and_gives_zero(slots: tuple[int, ...]) -> None:
    layer = GdnLayer()
    real = [row for row, slot in enumerate(slots) if slot >= 0]
    inputs = layer.inputs(len(slots))
    for row in set(range(len(slots))) - set(real):
        for x in inputs:
            x[row] = torch.nan
    layer.poison(*(slots[row] for row in real))
    alone, alone_out = layer.copy(), layer.out(len(real))
    alone.decode(tuple(x[real] for x in inputs), integers(*(slots[row] for row in real)), alone_out)
    out = layer.out(len(slots))
    layer.decode(inputs, integers(*slots), out)
    assert torch.equal(out[real], alone_out)
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), alone.bits(), strict=True))
    for row in set(range(len(slots))) - set(real):
        assert bool((out[row] == 0).all())


@pytest.mark.parametrize("poisoned", [False, True])
def test_padding_alone_changes_nothing(poisoned: bool) -> None:
    layer = GdnLayer()
    layer.ssm_state[0, 0, 0, :2] = torch.tensor([-0.0, torch.inf])
    if poisoned:
        layer.poison()
    before, out = layer.bits(), layer.out(3)
    layer.decode(tuple(torch.full_like(x, torch.nan) for x in layer.inputs(3)), integers(-1, -1, -1), out)
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), before, strict=True))
    assert bool((out == 0).all())
    layer.decode(layer.inputs(0), integers(), layer.out(0))


@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_neighbours_change_no_bits(count: int) -> None:
    layer = GdnLayer(Sizes(value_heads=12, slots=40))
    inputs, out, slots = layer.inputs(count), layer.out(count), torch.randperm(40)[:count].int()
    alone, alone_out = layer.copy(), layer.out(count)
    layer.decode(inputs, slots, out)
    for row in range(count):
        one = slice(row, row + 1)
        alone.decode(tuple(x[one] for x in inputs), slots[one], alone_out[one])
    assert torch.equal(out, alone_out)
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), alone.bits(), strict=True))


def test_bits_repeat() -> None:
    layer = GdnLayer(Sizes(slots=32))
    inputs, slots = layer.inputs(32), torch.arange(32).flip(0).int()
    runs = []
    for _ in range(3):
        again, out = layer.copy(), layer.out(32)
        again.decode(inputs, slots, out)
        runs.append((out, *again.bits()))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_a_nan_of_a_live_sequence_stays_visible_and_stays_its_own() -> None:
    layer = GdnLayer()
    inputs, out = layer.inputs(2), layer.out(2)
    inputs[0][0, -1] = torch.nan
    layer.decode(inputs, integers(1, 2), out)
    assert bool(out[0, -1].isnan().any())
    assert bool(out[1].isfinite().all())


@pytest.mark.parametrize("decay", [-12.0, 6.0])
def test_gates_near_one_and_near_zero(decay: float) -> None:
    layer = GdnLayer(replace(Sizes(), decay=decay, dtype=torch.float32))
    memory = layer.memory(1)
    for _ in range(20):
        inputs, out = layer.inputs(1), layer.out(1)
        wanted, memory = exact(layer, inputs, memory)
        layer.decode(inputs, integers(1), out)
        assert relative(out, wanted) < 2e-5
    assert relative(layer.ssm_state[1], memory.state) < 1e-5
