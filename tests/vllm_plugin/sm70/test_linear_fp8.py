"""FP8 layers of this architecture, loaded by vLLM's own model as each rank: their products are the checkpoint's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_plugin.sm70.synthetic_checkpoint import Scheme

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

SCHEMES: list[tuple[Scheme, bool]] = [
    ("fp8-block", False),
    ("fp8-block", True),
    ("fp8-channel", False),
    ("ct-channel", True),
    ("ct-block", True),
]
"""With whether the small projections of GDN, a and b, are quantised too."""
RANKS = [(0, 1), (1, 2), (0, 4), (1, 4), (3, 4)]


def relative_error(out: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((out.double() - wanted).norm() / wanted.norm())


def activations(columns: int) -> torch.Tensor:
    return torch.randn(7, columns, generator=torch.Generator().manual_seed(5)).half()


def layers(model: torch.nn.Module) -> dict[str, Any]:
    from vllm.model_executor.layers.linear import LinearBase

    prefix = "language_model.model."
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, LinearBase)}
    return {name.removeprefix(prefix): layer for name, layer in found.items() if not name.endswith("conv1d")}


@pytest.mark.parametrize(("rank", "ranks"), RANKS)
@pytest.mark.parametrize(("scheme", "small"), SCHEMES)
def test_every_layer_multiplies_by_its_part_of_the_checkpoint(
    load: Callable[..., Any], scheme: Scheme, rank: int, ranks: int, small: bool
) -> None:
    checkpoint = synthetic.make(scheme, small=small)
    model = load(checkpoint, rank, ranks)
    names = layers(model)
    assert len(names) == 3 + 2 + 2 * 2
    for name, layer in names.items():
        matrix = synthetic.matrix_of(checkpoint, name, rank, ranks)
        x = activations(matrix.shape[1])
        wanted = x.double() @ matrix.T
        out = layer.quant_method.apply(layer, x)
        if name.endswith("gate_up_proj"):
            gate, up = wanted.chunk(2, dim=-1)
            wanted = torch.nn.functional.silu(gate) * up
            out = model.get_submodule(f"language_model.model.{name.rpartition('.')[0]}.act_fn")(out)
        assert out.shape == wanted.shape, name
        assert relative_error(out, wanted) < 1e-3, name
