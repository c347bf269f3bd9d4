"""Pieces of a layer, packing in slabs, and the memory that a load takes."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


@pytest.mark.parametrize(
    ("sizes", "step"),
    [((8704, 8704), 128), ((512, 512, 1536, 1536), 128), ((12, 12), 4), ((64, 64, 128), 64), ((7,), 1)],
)
def test_columns_that_share_a_row_of_scales(sizes: tuple[int, ...], step: int) -> None:
    from appliance.vllm_plugin.sm70.fp8_weights import step_of

    assert step_of(sizes) == step


def rows(*blocks: tuple[float, int]) -> torch.Tensor:
    """Return scales: each value on so many rows."""
    return torch.tensor([[value, 1.0] for value, count in blocks for _ in range(count)])


@pytest.mark.parametrize(
    ("scale", "step", "wanted"),
    [
        (rows((1, 1), (2, 1), (3, 1)), 128, [(0, 384)]),
        (rows((1, 3), (2, 3)), 4, [(0, 12), (12, 24)]),
        (rows((1, 1), (2, 2)), 64, [(0, 64), (64, 192)]),
        # From 64 on, blocks of 128 are whole again; the last one is short.
        (rows((1, 1), (2, 2), (3, 2), (4, 1)), 64, [(0, 64), (64, 384)]),
        (rows((1, 5)), 32, [(0, 160)]),
        (rows((float("nan"), 2), (float("nan"), 2)), 64, [(0, 256)]),
    ],
)
def test_a_piece_starts_where_blocks_begin(scale: torch.Tensor, step: int, wanted: list[tuple[int, int]]) -> None:
    from appliance.vllm_plugin.sm70.fp8_weights import pieces_of

    assert pieces_of(scale, step) == wanted


def test_gate_and_up_are_one_operator_where_both_begin_with_a_block() -> None:
    from appliance.vllm_plugin.sm70.fp8_weights import can_gate

    assert can_gate(rows((1, 1), (2, 1), (3, 1), (4, 1)), 128)
    assert can_gate(rows((1, 2), (2, 1), (3, 2), (4, 1)), 64)
    assert not can_gate(rows((1, 1), (2, 2), (3, 1), (4, 2)), 64)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("block", [False, True])
def test_packing_in_slabs_is_packing_at_once(monkeypatch: pytest.MonkeyPatch, block: bool, gated: bool) -> None:
    from appliance.vllm_plugin.sm70 import fp8_weights, operators

    numbers = torch.Generator().manual_seed(4)
    n, k = 2 * 640, 256
    weight = (torch.randn(n, k, generator=numbers) * 30).to(torch.float8_e4m3fn)
    scale = torch.rand(n // 128, 2, generator=numbers) if block else torch.rand(n, 1, generator=numbers)
    # The greatest scale is in the last slab, and asks for a unit of its own.
    scale[-1] = 2.0**20
    whole = (operators.pack_blocks if block else operators.pack_channels)(weight, scale, gated)
    monkeypatch.setattr(fp8_weights, "SLAB_BYTES", 256 * k)
    (piece,) = fp8_weights.pack_layer(weight, scale, block=block, step=128 if block else 1, gated=gated)
    for name in ("weight", "scale", "counters", "n", "k", "unit", "gated"):
        ours, wanted = getattr(piece, name), getattr(whole, name)
        assert torch.equal(ours, wanted) if torch.is_tensor(wanted) else ours == wanted, name


class Memory(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of all tensors that live, and the most there were."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.users: dict[int, int] = {}
        self.live = self.most = 0
        for tensor in (*model.parameters(), *model.buffers()):
            self.hold(tensor)

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return
        self.users[address] = self.users.get(address, 0) + 1
        if self.users[address] == 1:
            self.live += size
            self.most = max(self.most, self.live)
        weakref.finalize(tensor, self.release, address, size)

    def release(self, address: int, size: int) -> None:
        self.users[address] -= 1
        if not self.users[address]:
            self.live -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if torch.is_tensor(each):
                self.hold(each)
        return out


def test_repacking_takes_no_more_than_one_layer_beside_what_is_resident(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    from appliance.vllm_plugin.sm70 import fp8_weights
    from appliance.vllm_plugin.sm70.linear_fp8 import Sm70Fp8LinearMethod

    slab = 128 * 2048
    monkeypatch.setattr(fp8_weights, "SLAB_BYTES", slab)
    model = torch.nn.Module()
    vllm_config = config(synthetic.make("ct-block"))
    with set_current_vllm_config(vllm_config), torch.device("cpu"):
        layers = [
            MergedColumnParallelLinear(
                2048,
                [1024, 1024],
                bias=False,
                quant_config=vllm_config.quant_config,
                prefix=f"layers.{number}.mlp.both",
            )
            for number in range(6)
        ]
    model.layers = torch.nn.ModuleList(layers)
    for layer in layers:
        for shard in (0, 1):
            layer.weight.weight_loader(layer.weight, torch.ones(1024, 2048).to(torch.float8_e4m3fn), shard)
            layer.weight_scale.weight_loader(layer.weight_scale, torch.rand(8, 16) + 1, shard)
    one = 2048 * 2048
    with Memory(model) as memory:
        before = memory.live
        assert before >= 6 * one
        for layer in layers:
            assert isinstance(layer.quant_method, Sm70Fp8LinearMethod)
            layer.quant_method.process_weights_after_loading(layer)
        resident = sum(p.numel() * p.element_size() for p in model.parameters())
    assert memory.most - max(before, resident) <= one + 6 * slab
    assert not [name for name, _ in model.named_parameters() if "packed" not in name]
    assert resident < 1.02 * 6 * one
