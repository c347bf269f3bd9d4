"""`sm70.gdn_prefill`: many tokens a sequence, by chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sm70_kernels.gdn.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.gdn.reference import PIECE
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, integers, relative

WIDE = Sizes(dtype=torch.float32)


def starts(lengths: tuple[int, ...]) -> torch.Tensor:
    return integers(0, *torch.tensor(lengths).cumsum(0).tolist())


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(),
        Sizes(key_heads=1, value_heads=3, key_head=32, value_head=32, width=2),
        Sizes(key_heads=4, value_heads=4, key_head=8, value_head=24, width=5, dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_sequences_of_any_length_with_and_without_a_past(sizes: Sizes) -> None:
    lengths, slots, carried = (1, 63, 64, 65, 0, 2, 7), (6, 2, 0, 4, 1, 5, 3), (1, 0, 1, 1, 1, 0, 0)
    layer = GdnLayer(sizes)
    layer.poison(6, 0, 4)
    tokens = sum(lengths)
    inputs, out = layer.inputs(tokens + 3), layer.out(tokens + 3)
    for x in inputs:
        x[tokens:] = torch.nan
    memories = [layer.memory(slot) if past else layer.no_memory() for slot, past in zip(slots, carried, strict=True)]
    before = layer.bits()
    layer.prefill(inputs, starts(lengths), integers(*slots), torch.tensor(carried).bool(), out)
    tolerance = 8e-3 if sizes.dtype == torch.bfloat16 else 1e-3
    for slot, memory, first, last in zip(slots, memories, starts(lengths), starts(lengths)[1:], strict=False):
        if first == last:
            assert bool(layer.ssm_state[slot].isnan().all()), "an empty sequence wrote its state"
            continue
        wanted, after = exact(layer, tuple(x[first:last] for x in inputs), memory)
        assert relative(out[first:last], wanted) < tolerance
        assert relative(layer.memory(slot).state, after.state) < 1e-5
        assert torch.equal(layer.memory(slot).history, after.history)
    assert bool((out[tokens:] == 7).all()), "rows beyond the last sequence were written"
    gaps = [pool.view(torch.uint8).eq(old) for pool, old in zip((layer.conv_pool, layer.ssm_pool), before, strict=True)]
    assert bool(gaps[0][:, (0, -1)].all())
    assert bool(gaps[1][:, -1].all())


def test_padding_sequences_touch_nothing_and_give_zero() -> None:
    layer = GdnLayer()
    layer.poison()
    inputs, out, before = layer.inputs(9), layer.out(9), layer.bits()
    layer.prefill(inputs, integers(0, 4, 9, 9), integers(-1, -1, -1), torch.tensor([True, False, True]), out)
    assert all(torch.equal(one, other) for one, other in zip(layer.bits(), before, strict=True))
    assert bool((out == 0).all())


@pytest.mark.parametrize("cut", [1, 2, 3, 63, 64, 65, 128, 199])
def test_two_pieces_equal_one(cut: int) -> None:
    layer, tokens = GdnLayer(WIDE), 200
    inputs, whole, pieces = layer.inputs(tokens), layer.out(tokens), layer.out(tokens)
    other, slot = layer.copy(), integers(3)
    layer.prefill(inputs, integers(0, tokens), slot, torch.tensor([False]), whole)
    other.prefill(tuple(x[:cut] for x in inputs), integers(0, cut), slot, torch.tensor([False]), pieces[:cut])
    rest = tuple(x[cut:] for x in inputs)
    other.prefill(rest, integers(0, tokens - cut), slot, torch.tensor([True]), pieces[cut:])
    assert relative(pieces, whole) < 1e-6
    assert relative(other.ssm_state[3], layer.ssm_state[3]) < 1e-6
    assert torch.equal(other.conv_state[3], layer.conv_state[3])


def test_pieces_of_whole_chunks_equal_one_bit_for_bit() -> None:
    layer, tokens = GdnLayer(WIDE), 3 * 64 + 5
    inputs, whole, pieces = layer.inputs(tokens), layer.out(tokens), layer.out(tokens)
    other, slot = layer.copy(), integers(3)
    layer.prefill(inputs, integers(0, tokens), slot, torch.tensor([True]), whole)
    for first, last in ((0, 64), (64, 192)):
        part = tuple(x[first:last] for x in inputs)
        other.prefill(part, integers(0, last - first), slot, torch.tensor([True]), pieces[first:last])
    assert torch.equal(whole[:192], pieces[:192])


@pytest.mark.parametrize(("decay", "keys"), [(-12.0, "random"), (6.0, "random"), (-12.0, "equal"), (0.0, "equal")])
def test_long_prompts_stay_exact_at_the_edges_of_the_gates(decay: float, keys: str) -> None:
    sizes = replace(WIDE, key_heads=1, value_heads=2, key_head=8, value_head=4, decay=decay)
    layer, tokens = GdnLayer(sizes), PIECE + 130
    inputs, out = layer.inputs(tokens), layer.out(tokens)
    if keys == "equal":
        # The triangular system is at its worst: nothing of what an earlier token wrote is orthogonal.
        inputs[0][:, :16] = inputs[0][0, :16]
        inputs[1].fill_(5)
    memory = layer.memory(2)
    layer.prefill(inputs, integers(0, tokens), integers(2), torch.tensor([True]), out)
    wanted, after = exact(layer, inputs, memory)
    assert relative(out, wanted) < 1e-4
    assert relative(layer.ssm_state[2], after.state) < 1e-4


def test_prefill_decode_and_verify_agree() -> None:
    sizes = replace(WIDE, rows=3)
    layer = GdnLayer(sizes)
    inputs = layer.inputs(96)
    by_prefill, by_decode, by_verify = layer.copy(), layer.copy(), layer.copy()
    outs = [layer.out(96) for _ in range(3)]
    by_prefill.prefill(inputs, integers(0, 96), integers(2), torch.tensor([True]), outs[0])
    for token in range(96):
        one = slice(token, token + 1)
        by_decode.decode(tuple(x[one] for x in inputs), integers(2), outs[1][one])
    for token in range(0, 96, 3):
        part = slice(token, token + 3)
        slots, accepted = integers(2, 4, 6)[None], integers(3 if token else 1)
        by_verify.verify(tuple(x[part] for x in inputs), integers(0, 3), slots, accepted, outs[2][part])
    assert relative(outs[0], outs[1]) < 1e-6
    assert torch.equal(outs[1], outs[2])
    assert relative(by_prefill.ssm_state[2], by_decode.ssm_state[2]) < 1e-6
    assert torch.equal(by_verify.ssm_state[6], by_decode.ssm_state[2])


def test_bits_repeat_and_neighbours_change_none() -> None:
    layer = GdnLayer(Sizes(slots=4))
    inputs = layer.inputs(200)
    runs = []
    for _ in range(2):
        again, out = layer.copy(), layer.out(200)
        again.prefill(inputs, integers(0, 70, 200), integers(1, 3), torch.tensor([True, False]), out)
        runs.append((out, *again.bits()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    alone, out = layer.copy(), layer.out(130)
    alone.prefill(tuple(x[70:] for x in inputs), integers(0, 130), integers(3), torch.tensor([False]), out)
    assert torch.equal(out, runs[0][0][70:])


def test_no_value_of_activations_is_rounded_on_the_way() -> None:
    # Upstream rounds the convolution's result; in FP16 this one would be infinite there.
    layer = GdnLayer()
    inputs, wide = layer.inputs(5), layer.out(5).double()
    for x in (inputs[0], layer.conv_state[2]):
        x.mul_(40000 / x.abs().max())
    wanted, _ = exact(layer, inputs, layer.memory(2))
    layer.prefill(inputs, integers(0, 5), integers(2), torch.tensor([True]), wide)
    assert bool(wide.isfinite().all())
    assert relative(wide, wanted) < 1e-5
