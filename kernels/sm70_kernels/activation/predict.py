"""How the gates are launched in a step: grid, parameters, and which buffers come from DRAM. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.activation import table
from sm70_kernels.predict.launch import Launch, activations
from sm70_kernels.predict.work import Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.predict.work import Step
    from sm70_kernels.registry import Specialisation


def launches(step: Step) -> Iterator[Planned]:
    """Yield the output gate of full attention; SiLU·mul counts with the dense layers."""
    sigmoid = table.gate(wide=True, silu=False)
    launch = gate(sigmoid, step.tokens, qwen38.QUERY_HEADS // step.ranks, qwen38.HEAD)
    yield Planned("sigmoid_gate", "norm", qwen38.ATTENTION_LAYERS, sigmoid, launch)


def gate(spec: Specialisation, tokens: int, heads: int, width: int) -> Launch:
    """f(gate) * x over [tokens, heads, width]."""
    rows = activations(2 * tokens * heads * width)
    blocks = -(-heads * width // (spec.threads * spec.constants["WIDTH"]))
    strides = (heads * width, width, 2 * heads * width, 2 * width)
    return Launch(
        (tokens, blocks, 1), (rows, rows, rows, heads, width, *strides), f"tokens={tokens} row={heads}x{width}"
    )
