"""`sm70.gdn_verify`: several rows a sequence, of which the next round keeps some."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sm70_kernels.gdn.operator  # noqa: F401 - registers torch.ops.sm70
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, integers, relative

ROWS = 4
SIZES = Sizes(rows=ROWS, slots=14, dtype=torch.float32)
SLOTS = torch.tensor([[5, 1, 9, 3], [0, 8, 2, 11], [7, 12, 4, 6]], dtype=torch.int32)


def chosen(inputs: tuple[torch.Tensor, ...], rows: list[int]) -> tuple[torch.Tensor, ...]:
    return tuple(x[rows] for x in inputs)


@pytest.mark.parametrize("seed", range(4))
def test_any_pattern_of_acceptance_equals_the_tokens_that_were_kept(seed: int) -> None:
    layer = GdnLayer(SIZES, seed)
    layer.poison(*SLOTS[:, 0].tolist())
    layer.conv_state[..., SIZES.width - 1 :] = torch.nan
    memories = [layer.memory(int(slot)) for slot in SLOTS[:, 0]]
    accepted = [1, 1, 1]
    for _ in range(8):
        counts = torch.randint(1, ROWS + 1, (3,), generator=layer.generator).tolist()
        bounds = integers(0, *torch.tensor(counts).cumsum(0).tolist())
        inputs, out = layer.inputs(sum(counts)), layer.out(sum(counts))
        layer.verify(inputs, bounds, SLOTS, integers(*accepted), out)
        for number, count in enumerate(counts):
            first = int(bounds[number])
            wanted, _ = exact(layer, chosen(inputs, list(range(first, first + count))), memories[number])
            assert relative(out[first : first + count], wanted) < 1e-5
            accepted[number] = int(torch.randint(1, count + 1, (1,), generator=layer.generator))
            kept = chosen(inputs, list(range(first, first + accepted[number])))
            _, memories[number] = exact(layer, kept, memories[number])
            state = layer.ssm_state[SLOTS[number, accepted[number] - 1]]
            assert relative(state, memories[number].state) < 1e-5


def test_one_row_after_another_round_is_a_plain_decode_from_what_was_accepted() -> None:
    layer = GdnLayer(SIZES)
    inputs, plain, memory = layer.inputs(4), layer.inputs(1), layer.memory(5)
    layer.verify(inputs, integers(0, 4), SLOTS[:1], integers(1), layer.out(4))
    _, memory = exact(layer, chosen(inputs, [0, 1, 2]), memory)
    wanted, after = exact(layer, plain, memory)
    out = layer.out(1)
    layer.verify(plain, integers(0, 1), SLOTS[:1], integers(3), out)
    assert relative(out, wanted) < 1e-5
    assert relative(layer.ssm_state[5], after.state) < 1e-5
    assert torch.equal(layer.memory(5).history, after.history), "the next plain decode finds its history in front"


def test_conv_state_holds_the_history_and_the_rows_in_order() -> None:
    layer = GdnLayer(SIZES)
    inputs, before, pool = layer.inputs(3), layer.conv_state[0].clone(), layer.conv_pool.clone()
    layer.verify(inputs, integers(0, 3), SLOTS[1:2], integers(2), layer.out(3))
    # The window of the last round begins at accepted - 1 = 1; it moves on by one, and the rows follow.
    history = before[:, 2:4]
    assert torch.equal(layer.conv_state[0], torch.cat((history, inputs[0].mT, before[:, 5:]), dim=1))
    changed = (layer.conv_pool != pool).any(-1).nonzero().tolist()
    assert changed == [[0, column + 1] for column in range(5)], "only slot [s, 0] holds conv state"


def test_padding_touches_nothing_and_gives_zero() -> None:
    layer = GdnLayer(SIZES)
    inputs, slots = layer.inputs(9), torch.full((5, ROWS), -1, dtype=torch.int32)
    slots[1], slots[3, :2] = SLOTS[1], integers(3, 5)
    bounds, accepted = integers(0, 2, 5, 5, 7, 7), integers(99, 2, -5, 1, 0)
    for x in inputs:
        x[:2] = torch.nan
        x[7:] = torch.nan
    layer.poison(0, 8, 3)
    alone, alone_out = layer.copy(), layer.out(5)
    alone.verify(chosen(inputs, [2, 3, 4, 5, 6]), integers(0, 3, 5), slots[[1, 3]], integers(2, 1), alone_out)
    out = layer.out(9)
    layer.verify(inputs, bounds, slots, accepted, out)
    assert torch.equal(out[2:7], alone_out)
    assert bool(alone_out.isfinite().all())
    assert bool((out[:2] == 0).all())
    assert bool((out[7:] == 7).all()), "rows beyond the last sequence were written"
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), alone.bits(), strict=True))


def test_a_row_without_a_slot_keeps_no_state() -> None:
    layer = GdnLayer(SIZES)
    slots, inputs, out, memory = SLOTS[:1].clone(), layer.inputs(4), layer.out(4), layer.memory(5)
    slots[0, 2:] = -1
    before = layer.ssm_state.clone()
    layer.verify(inputs, integers(0, 4), slots, integers(1), out)
    wanted, _ = exact(layer, inputs, memory)
    assert relative(out, wanted) < 1e-5
    assert (layer.ssm_state != before).flatten(1).any(-1).nonzero().flatten().tolist() == [1, 5]


def test_padding_alone_changes_nothing() -> None:
    layer = GdnLayer(SIZES)
    layer.poison()
    before, out = layer.bits(), layer.out(2)
    layer.verify(layer.inputs(2), integers(0, 1, 2), torch.full((2, ROWS), -1, dtype=torch.int32), integers(1, 1), out)
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), before, strict=True))
    assert bool((out == 0).all())
    layer.verify(layer.inputs(0), integers(0), torch.empty(0, ROWS, dtype=torch.int32), integers(), layer.out(0))


@pytest.mark.parametrize(("bounds", "accepted"), [((0, 5, 6), (1, 1)), ((0, 1, 2), (0, 1)), ((0, 1, 2), (5, 1))])
def test_what_cannot_be_is_not_a_number_and_changes_no_state(
    bounds: tuple[int, ...], accepted: tuple[int, ...]
) -> None:
    layer = GdnLayer(SIZES)
    inputs, out, before = layer.inputs(bounds[-1]), layer.out(bounds[-1]), layer.ssm_state.clone()
    layer.verify(inputs, integers(*bounds), SLOTS[:2], integers(*accepted), out)
    assert bool(out[: bounds[1]].isnan().all())
    assert bool(out[bounds[1] :].isfinite().all())
    assert torch.equal(layer.ssm_state[SLOTS[0]], before[SLOTS[0]])


@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_full_rounds_of_any_number_of_rows(rows: int) -> None:
    sizes = replace(SIZES, rows=rows, slots=2 * rows, dtype=torch.float16)
    layer = GdnLayer(sizes)
    slots = torch.randperm(2 * rows, generator=layer.generator).view(2, rows).int()
    inputs, out = layer.inputs(2 * rows), layer.out(2 * rows)
    memories = [layer.memory(int(slot)) for slot in slots[:, 0]]
    layer.verify(inputs, integers(0, rows, 2 * rows), slots, integers(1, 1), out)
    for number, memory in enumerate(memories):
        part = slice(number * rows, (number + 1) * rows)
        wanted, after = exact(layer, tuple(x[part] for x in inputs), memory)
        assert relative(out[part], wanted) < 1e-3
        assert relative(layer.ssm_state[slots[number, -1]], after.state) < 1e-5
