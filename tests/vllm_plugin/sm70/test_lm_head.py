"""The LM head and the embedding, loaded as each rank: this model builds them without a quantisation config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_plugin.sm70.synthetic_checkpoint import Scheme

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

PADDED = 512
"""Of 500 entries: vLLM pads a vocabulary to a multiple of 64."""


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 2), (0, 4), (3, 4)])
@pytest.mark.parametrize(
    ("scheme", "head", "method"),
    [
        ("fp8-block", False, "UnquantizedEmbeddingMethod"),
        ("ct-channel", False, "UnquantizedEmbeddingMethod"),
        ("ct-channel", True, "Sm70Fp8HeadMethod"),
        ("ct-block", True, "Sm70Fp8HeadMethod"),
    ],
)
def test_a_rank_has_the_logits_of_its_part_of_the_vocabulary(
    load: Callable[..., Any], scheme: Scheme, head: bool, method: str, rank: int, ranks: int
) -> None:
    checkpoint = synthetic.make(scheme, head=head)
    layer = load(checkpoint, rank, ranks).language_model.lm_head
    assert type(layer.quant_method).__name__ == method
    hidden = torch.randn(3, synthetic.HIDDEN, generator=torch.Generator().manual_seed(2)).half()
    logits = layer.quant_method.apply(layer, hidden)
    matrix = torch.zeros(PADDED, synthetic.HIDDEN, dtype=torch.float64)
    matrix[: synthetic.VOCABULARY] = checkpoint.matrices["lm_head"]
    wanted = hidden.double() @ matrix.chunk(ranks)[rank].T
    assert logits.shape == (3, PADDED // ranks)
    assert float((logits.double() - wanted).norm() / wanted.norm()) < 1e-3


def test_the_embedding_is_the_checkpoints(load: Callable[..., Any]) -> None:
    checkpoint = synthetic.make()
    embedding = load(checkpoint).language_model.model.embed_tokens
    assert type(embedding).__name__ == "Sm70VocabParallelEmbedding"
    tokens = torch.tensor([0, 7, synthetic.VOCABULARY - 1])
    wanted = checkpoint.tensors["model.language_model.embed_tokens.weight"][tokens].half()
    assert torch.equal(embedding.quant_method.embedding(embedding, tokens), wanted)


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        (
            "lm_head.weight_scale",
            torch.ones(499, 1),
            r"lm_head.weight_scale is to have 500 scales or one, not \[499, 1\]",
        ),
        (
            "lm_head.weight",
            torch.ones(500, 255).to(torch.float8_e4m3fn),
            r"lm_head.weight is to be float8_e4m3fn\[500, 2",
        ),
        ("lm_head.weight", torch.ones(500, 256).half(), "lm_head.weight is float16, but its parameter is FP8"),
        (
            "lm_head.weight_scale",
            torch.full((500, 1), torch.nan),
            "lm_head: scales are to be positive numbers, not nan",
        ),
        ("lm_head.weight_scale", None, "the checkpoint has no tensor lm_head.weight_scale, which the model needs"),
    ],
)
def test_a_wrong_head_stops_the_load(
    load: Callable[..., Any], name: str, tensor: torch.Tensor | None, says: str
) -> None:
    checkpoint = synthetic.make("ct-channel")
    del checkpoint.tensors[name]
    if tensor is not None:
        checkpoint.tensors[name] = tensor
    with pytest.raises(ValueError, match=says) as caught:
        load(checkpoint)
    assert "\n" not in str(caught.value)


def test_random_weights_make_a_head(load: Callable[..., Any]) -> None:
    head = load(synthetic.make("ct-channel"), load_format="dummy").language_model.lm_head
    assert bool(head.quant_method.apply(head, torch.ones(2, synthetic.HIDDEN).half()).isfinite().all())
