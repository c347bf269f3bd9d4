"""The dense operators on a CPU: right, traceable, and one line for every misuse; and which way the rows go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.dense import choice, table
from sm70_kernels.dense import operator as dense
from sm70_kernels.dense.choice import Choices
from sm70_kernels.dense.pack import PackedDense, pack_blocks, pack_channels
from sm70_kernels.dense.table import layer_of
from sm70_kernels.proof.prove import relative_error

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = ("dense_w8a16", "dense_w8a16_silu_mul")
N, K = 96, 256


def layer(gated: bool, channel: bool = False) -> tuple[PackedDense, torch.Tensor]:
    """Return a packed layer and the matrix it stands for."""
    numbers = torch.Generator().manual_seed(3)
    rows = 2 * N if gated else N
    weight = (torch.randn(rows, K, generator=numbers) * 20).to(torch.float8_e4m3fn)
    if channel:
        scale = torch.rand(rows, 1, generator=numbers) * 0.01 + 0.001
        return pack_channels(weight, scale, gated), weight.double() * scale.double()
    scale = torch.rand(2 if gated else 1, 2, generator=numbers) * 0.01 + 0.001
    each = scale.repeat_interleave(N, 0).repeat_interleave(128, 1)
    return pack_blocks(weight, scale, gated, split=(1, 1)), weight.double() * each.double()


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).half()


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("shape", [(1, K), (7, K), (2, 3, K), (K,), (0, K)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_multiplies_by_the_checkpoints_matrix(operator: str, shape: tuple[int, ...], channel: bool) -> None:
    gated = operator == "dense_w8a16_silu_mul"
    packed, matrix = layer(gated, channel)
    x = rows(*shape)
    out = getattr(torch.ops.sm70, operator)(x, *packed.arguments)
    wanted = x.double() @ matrix.T
    if gated:
        wanted = torch.nn.functional.silu(wanted[..., :N]) * wanted[..., N:]
    assert out.dtype == torch.float16
    assert out.shape == wanted.shape == (*shape[:-1], N)
    assert relative_error(out, wanted) < 5e-4


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_compile_sees_one_operator(operator: str) -> None:
    packed, _ = layer(operator == "dense_w8a16_silu_mul")
    function = getattr(torch.ops.sm70, operator)
    compiled = torch.compile(
        lambda x: function(x, *packed.arguments), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for count in (1, 40, 2000):
        assert torch.equal(compiled(rows(count, K)), function(rows(count, K), *packed.arguments))


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_finds_nothing_wrong_with_an_operator(operator: str) -> None:
    packed, _ = layer(operator == "dense_w8a16_silu_mul")
    torch.library.opcheck(getattr(torch.ops.sm70, operator).default, (rows(5, K), *packed.arguments))


@pytest.mark.parametrize(
    ("number", "wrong", "says"),
    [
        (0, rows(3, K - 8), r"wants x float16\[..., 256\], not float16\[3, 248\] on cpu"),
        (0, rows(3, K).float(), r"wants x float16\[..., 256\], not float32\[3, 256\] on cpu"),
        (
            1,
            torch.zeros(96, 256, dtype=torch.uint8),
            r"packed for n=96, k=256: uint8\[3, 2, 8, 32, 16\], not uint8\[96, 2",
        ),
        (2, torch.zeros(3, 4), r"wants scales float32\[3, 36\], not float32\[3, 4\] on cpu"),
        (3, torch.zeros(1), r"wants counters int32\[64\], not float32\[1\] on cpu"),
        (
            4,
            128,
            r"wants a weight packed for n=128, k=256: uint8\[4, 2, 8, 32, 16\], not uint8\[3, 2, 8, 32, 16\] on cpu",
        ),
    ],
    ids=["width", "type", "weight", "scale", "counters", "columns"],
)
def test_a_misuse_is_refused_in_one_line(number: int, wrong: Any, says: str) -> None:
    arguments: list[Any] = [rows(3, K), *layer(False)[0].arguments]
    arguments[number] = wrong
    with pytest.raises(ValueError, match=rf"^sm70.dense_w8a16 {says}" if number != 1 else says) as caught:
        dense._dense("dense_w8a16", *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_weight_scale_or_counters_with_gaps_are_refused(number: int) -> None:
    arguments: list[Any] = [rows(3, K), *layer(False)[0].arguments]
    arguments[number] = torch.stack((arguments[number], arguments[number]), dim=-1)[..., 0]
    with pytest.raises(ValueError, match=r"wants (a )?packed (weight|scales|counters).* with strides \["):
        dense._dense("dense_w8a16", *arguments)


def test_transposed_scales_and_an_unaligned_weight_are_refused() -> None:
    x, weight, scale, *rest = [rows(3, K), *layer(False)[0].arguments]
    with pytest.raises(ValueError, match="wants packed scales"):
        dense._dense("dense_w8a16", x, weight, scale.t().contiguous().t(), *rest)
    moved = torch.zeros(weight.numel() + 1, dtype=torch.uint8)[1:].view(weight.shape)
    with pytest.raises(ValueError, match="on a 16-byte boundary"):
        dense._dense("dense_w8a16", x, moved, scale, *rest)


def test_a_plain_weight_is_no_gate_and_up() -> None:
    with pytest.raises(ValueError, match=r"sm70.dense_w8a16_silu_mul wants a weight packed for n=96, k=256: uint8\[6,"):
        dense._dense("dense_w8a16_silu_mul", rows(1, K), *layer(False)[0].arguments)


@pytest.fixture
def adopted() -> Iterator[None]:
    yield
    choice.adopt(Choices())


def test_the_number_of_rows_decides_and_a_record_may_decide_otherwise(adopted: None) -> None:
    one = layer_of(5120, 4352, False)
    first, second = table.candidates(one, 8)
    assert choice.tactic_for(one, 5) == first
    assert not choice.expands(one, table.EXPAND_FROM - 1)
    assert choice.expands(one, table.EXPAND_FROM)
    choice.adopt(Choices({(one, 8): second}, {one: 200}))
    assert choice.tactic_for(one, 8) == second
    assert choice.tactic_for(one, 9) == table.candidates(one, 9)[0]
    assert choice.tactic_for(layer_of(5120, 1536, False), 8) == table.candidates(layer_of(5120, 1536, False), 8)[0]
    assert choice.expands(one, 200)
    assert not choice.expands(layer_of(5120, 1536, False), 200)


def test_a_gate_and_an_up_beyond_fp16_are_no_fault() -> None:
    x = torch.ones(2, 8, dtype=torch.float16)
    gate = torch.tensor([-20000.0, -1.0, 20000.0, -20000.0]).half()[:, None].expand(4, 8).contiguous()
    up = torch.tensor([1.0, 20000.0, 0.0, 20000.0]).half()[:, None].expand(4, 8).contiguous()
    out = torch.empty(2, 4, dtype=torch.float16)
    dense._gated_product(x, gate, up, 1.0, out)
    # Gates of -8, so that silu times an up of 160000 is still inside the range.
    wanted = torch.nn.functional.silu(torch.tensor(-8.0)) * 160000
    assert out[0].tolist() == [0, wanted.half().item(), 0, 0]


def test_the_librarys_products_add_in_full_and_the_settings_come_back() -> None:
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_reduced_precision_reduction, settings.allow_fp16_accumulation
    with dense._full_sums():
        assert not settings.allow_fp16_reduced_precision_reduction
        assert not settings.allow_fp16_accumulation
    assert (settings.allow_fp16_reduced_precision_reduction, settings.allow_fp16_accumulation) == before
    assert before[0], "torch allows it unless told otherwise"
