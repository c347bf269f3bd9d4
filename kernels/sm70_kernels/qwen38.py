"""Qwen3.8-27B, once: the checkpoint's shapes, and what of them a decode step launches on a rank. Pure data.

Source: Qwen/Qwen3.8-27B, config.json, text_config. Profiles have the same shapes for the memory plan; a test holds
that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURE = "Qwen3_5ForConditionalGeneration"

HIDDEN = 5120
INTERMEDIATE = 17408
VOCABULARY = 248320
POSITIONS = 262144
"""Rows of the rotary embedding's table."""
EPS = 1e-6

QUERY_HEADS, KEY_HEADS, HEAD, ROTARY = 24, 4, 256, 64
MROPE_SECTIONS = (11, 11, 10)

GDN_HEADS, GDN_KEY_HEADS, GDN_HEAD = 48, 16, 128
"""Heads of a GDN layer's values, those of its queries and of its keys, and the elements of each."""
CONV_WIDTH = 4
"""Taps of a GDN layer's short convolution."""

GDN_LAYERS, ATTENTION_LAYERS = 48, 16
LAYERS = GDN_LAYERS + ATTENTION_LAYERS

ATTENTION_COLUMNS = (2 * QUERY_HEADS + 2 * KEY_HEADS) * HEAD
"""Queries with their output gates, keys and values."""
GDN_COLUMNS = 2 * (GDN_KEY_HEADS + GDN_HEADS) * GDN_HEAD
"""Queries, keys, values and z of a GDN layer (docs/checkpoints.md, "Shapes of each rank")."""

EXPANDED_BYTES = 2 * (2 * INTERMEDIATE // 4) * HIDDEN
"""Of the largest dense layer in FP16 at four ranks (85 MiB)."""

RANKS = (1, 2, 4)
"""Sizes of a tensor-parallel group."""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A dense layer of a rank: `n` columns of the result (of each half, when `gated`), `k` inputs.

    `count` is how often a step has it.
    """

    part: str
    count: int
    n: int
    k: int
    gated: bool = False

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Columns, inputs, and whether they are a gate and an up."""
        return self.n, self.k, self.gated


def dense_layers(ranks: int) -> tuple[DenseLayer, ...]:
    """Return the dense layers whose weights are quantised, in the order of a layer's parts."""
    inner = INTERMEDIATE // ranks
    return (
        DenseLayer("gate_up", LAYERS, inner, HIDDEN, gated=True),
        DenseLayer("down", LAYERS, HIDDEN, inner),
        DenseLayer("qkv", ATTENTION_LAYERS, ATTENTION_COLUMNS // ranks, HIDDEN),
        DenseLayer("o", ATTENTION_LAYERS, HIDDEN, QUERY_HEADS * HEAD // ranks),
        DenseLayer("qkvz", GDN_LAYERS, GDN_COLUMNS // ranks, HIDDEN),
        DenseLayer("out", GDN_LAYERS, HIDDEN, GDN_HEADS * GDN_HEAD // ranks),
    )


def output_head(ranks: int) -> DenseLayer:
    """Return the output head, whose vocabulary is split over the ranks."""
    return DenseLayer("lm_head", 1, VOCABULARY // ranks, HIDDEN)


def gdn_gates(ranks: int) -> DenseLayer:
    """Return b and a of the GDN layers: one column of each for every value head."""
    return DenseLayer("gdn_ba", GDN_LAYERS, 2 * GDN_HEADS // ranks, HIDDEN)


def dense_weights() -> int:
    """Return the weights of all dense layers, whole model, b and a of the GDN layers included, the head not."""
    every = (*dense_layers(1), gdn_gates(1))
    return sum(layer.count * layer.n * layer.k * (2 if layer.gated else 1) for layer in every)
