"""The LM head: FP16, or FP8 with its scales, its vocabulary shared out over the ranks.

vLLM 0.19.1 builds the head of this model without a quantisation config, so our classes look the config up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.utils import set_weight_attrs

from appliance.vllm_plugin.sm70 import fp8_weights
from appliance.vllm_plugin.sm70.checkpoint_layout import canonical
from appliance.vllm_plugin.sm70.fp8_scheme import BLOCK
from appliance.vllm_plugin.sm70.fp8_weights import WeightError
from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.vllm_plugin.sm70.fp8_scheme import Scheme

CUSTOM_OPS = ("ParallelLMHead", "VocabParallelEmbedding")
"""Names by which the platform enables our classes in `custom_ops`."""


class Sm70VocabParallelEmbedding(VocabParallelEmbedding):  # type: ignore[misc]
    """The embedding; the checkpoint's config decides how it is stored, which vLLM does not ask for this model."""

    def __init__(
        self, *arguments: object, quant_config: QuantizationConfig | None = None, prefix: str = "", **rest: object
    ) -> None:
        super().__init__(*arguments, quant_config=config_for(quant_config), prefix=prefix, **rest)


class Sm70ParallelLMHead(ParallelLMHead):  # type: ignore[misc]
    """The LM head; likewise. Not asked again where the head is the embedding (tied weights)."""

    def __init__(
        self, *arguments: object, quant_config: QuantizationConfig | None = None, prefix: str = "", **rest: object
    ) -> None:
        super().__init__(*arguments, quant_config=config_for(quant_config), prefix=prefix, **rest)


def config_for(given: QuantizationConfig | None) -> QuantizationConfig | None:
    """Return a layer's quantisation config: the one that is given, else that of the checkpoint if it is ours."""
    if given is not None:
        return given
    config = get_current_vllm_config().quant_config
    return config if getattr(config, "answers_for_heads", False) else None


class Sm70Fp8HeadMethod(QuantizeMethodBase):  # type: ignore[misc]
    """An LM head with FP8 weights through `torch.ops.sm70.dense_w8a16`; one instance a head."""

    def __init__(self, scheme: Scheme, prefix: str) -> None:
        self.scheme = scheme
        self.name = canonical(prefix)
        self.dummy = fp8_weights.loads_random_weights()
        self.loaded: set[str] = set()
        self.step = 1
        self.operator = operator("dense_w8a16")
        self.pieces: list[tuple[int, int, float]] = []

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *_: object,
        **_rest: object,
    ) -> None:
        """Register `weight` and the scale parameter, in the checkpoint's order; rows of padding are zero."""
        k, (n,) = input_size_per_partition, output_partition_sizes
        block = self.scheme.kind == "block"
        self.step = fp8_weights.step_of(output_partition_sizes) if block else 1
        shapes = {"weight": (n, k), self.scheme.scale: (n // self.step, -(-k // BLOCK) if block else 1)}
        for leaf, shape in shapes.items():
            dtype = torch.float8_e4m3fn if leaf == "weight" else torch.float32
            parameter = torch.nn.Parameter(torch.zeros(shape, dtype=torch.uint8).to(dtype), requires_grad=False)
            set_weight_attrs(parameter, {"weight_loader": self._loader(layer, leaf, k)})
            layer.register_parameter(leaf, parameter)

    def _loader(self, layer: torch.nn.Module, leaf: str, k: int) -> Callable[[torch.nn.Parameter, torch.Tensor], None]:
        def load(param: torch.nn.Parameter, loaded: torch.Tensor) -> None:
            name, rows = f"{self.name}.{leaf}", int(layer.org_vocab_size)
            if leaf == "weight":
                loaded, step = fp8_weights.checked_weight(name, loaded, rows, k), 1
            else:
                block = self.scheme.kind == "block"
                loaded, step = fp8_weights.expanded_scales(name, loaded, rows, k, block), self.step
            indices = layer.shard_indices
            own = loaded[indices.org_vocab_start_index : indices.org_vocab_end_index : step]
            param.data[: own.shape[0]].copy_(own)
            self.loaded.add(leaf)

        return load

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Put the weight into fragment order and free the checkpoint's. Raises WeightError, one line."""
        scale = getattr(layer, self.scheme.scale).data
        if self.dummy:
            scale.fill_(1.0)
        missing = [leaf for leaf in ("weight", self.scheme.scale) if leaf not in self.loaded and not self.dummy]
        if missing:
            raise WeightError(f"the checkpoint has no tensor {self.name}.{missing[0]}")
        block = self.scheme.kind == "block"
        try:
            pieces = fp8_weights.pack_layer(layer.weight.data, scale, block=block, step=self.step, gated=False)
        except ValueError as error:
            raise WeightError(f"{self.name}: {error}: the checkpoint is damaged") from error
        del scale
        delattr(layer, "weight")
        delattr(layer, self.scheme.scale)
        self.pieces = fp8_weights.place(layer, pieces)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return this rank's logits [rows, vocabulary of the rank] for hidden states [rows, K]."""
        return fp8_weights.multiply(layer, self.pieces, x, bias, self.operator)


def register() -> None:
    """Replace vLLM's head and embedding in this process."""
    for name, ours in (("ParallelLMHead", Sm70ParallelLMHead), ("VocabParallelEmbedding", Sm70VocabParallelEmbedding)):
        if op_registry_oot.get(name) is not ours:
            CustomOp.register_oot(ours, name=name)
