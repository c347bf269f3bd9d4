"""Dense layers with FP8 weights: our quantisation configs for `fp8` and `compressed-tensors`, and their linear method.

Weights keep their 8 bits and their scales; activations stay FP16.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import (
    LinearBase,
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    UnquantizedLinearMethod,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.parameter import ModelWeightParameter

from appliance.vllm_plugin.sm70 import fp8_scheme, fp8_weights, lm_head
from appliance.vllm_plugin.sm70.checkpoint_layout import shards_of
from appliance.vllm_plugin.sm70.fp8_scheme import BLOCK, Scheme
from appliance.vllm_plugin.sm70.fp8_weights import ScaleParameter, WeightError
from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from appliance.vllm_plugin.sm70.activation import Sm70SiluAndMul

METHODS = ("fp8", "compressed-tensors")
"""The `quant_method`s of checkpoints for which our configs answer."""

KV_SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale")
NO_SCALE = -1.0
"""vLLM's sign that the checkpoint gave no scale."""

ShardId = str | int | tuple[int, ...] | None
"""What vLLM calls a matrix of a fused layer: q, k, v, a number, several numbers for one tensor; None for a whole."""

logger = logging.getLogger("vllm.appliance.sm70")


class Sm70Fp8Config(QuantizationConfig):  # type: ignore[misc]
    """The quantisation config of a checkpoint with `quant_method` fp8: FP8 weights, scales a block or a row."""

    name = "fp8"

    def __init__(self, layout: fp8_scheme.Fp8Layout) -> None:
        super().__init__()
        self.layout = layout

    def get_name(self) -> str:
        return self.name

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 70

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sm70Fp8Config:
        """Return the config. Raises SchemeError, one line, for a scheme that we do not serve."""
        layout = fp8_scheme.read({"quant_method": cls.name, **config})
        if layout.kv_cache:
            logger.info("The checkpoint declares an FP8 KV cache; --kv-cache-dtype decides what is used")
        return cls(layout)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return the method of a linear layer, a head, an embedding or an attention; None for any other layer."""
        if isinstance(layer, Attention):
            # E5M2 is stored without scales, and vLLM refuses it beside scales of a checkpoint.
            return None if layer.kv_cache_dtype == "fp8_e5m2" else Sm70KVCacheMethod(self)
        if isinstance(layer, LinearBase):
            scheme = self.layout.scheme(prefix, self.packed_modules_mapping)
            if scheme is None:
                return UnquantizedLinearMethod()
            return Sm70Fp8LinearMethod(scheme, shards_of(prefix, self.packed_modules_mapping))
        if isinstance(layer, ParallelLMHead):
            scheme = self.layout.scheme(prefix, self.packed_modules_mapping, head=True)
            return UnquantizedEmbeddingMethod() if scheme is None else lm_head.Sm70Fp8HeadMethod(scheme, prefix)
        return UnquantizedEmbeddingMethod() if isinstance(layer, VocabParallelEmbedding) else None


class Sm70CompressedTensorsConfig(Sm70Fp8Config):
    """The quantisation config of a checkpoint with `quant_method` compressed-tensors and FP8 weights."""

    name = "compressed-tensors"


class Sm70KVCacheMethod(BaseKVCacheMethod):  # type: ignore[misc]
    """Scales of an FP8 KV cache: the checkpoint's, or 1.0 where it has none."""

    def __init__(self, quant_config: QuantizationConfig) -> None:
        super().__init__(quant_config)
        self.dummy = fp8_weights.loads_random_weights()

    def create_weights(self, layer: torch.nn.Module) -> None:
        """Register the scales in float32; vLLM's own take the model's type, and FP16 loses small ones."""
        super().create_weights(layer)
        for name in KV_SCALES:
            scale = torch.nn.Parameter(torch.tensor(NO_SCALE, dtype=torch.float32), requires_grad=False)
            setattr(layer, name, scale)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Set the layer's scales. Raises WeightError, one line, for one that is no positive number."""
        for name in KV_SCALES:
            scale = getattr(layer, name, None)
            if scale is None:
                continue
            if self.dummy:
                scale.data.fill_(NO_SCALE)
            value = float(scale)
            if value != NO_SCALE and not 0.0 < value < float("inf"):
                raise WeightError(f"{layer.layer_name}.{name} is {value}; a scale of the KV cache is a positive number")
        super().process_weights_after_loading(layer)


class KeptWeightMethod(UnquantizedLinearMethod):  # type: ignore[misc]
    """An unquantised weight that stays as it was loaded, for a layer whose weight others read (a convolution's)."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Do nothing: on a CPU vLLM's own method wants a matrix, packs it and drops the weight."""


@register_weight_loader_v2_supported_method
class Sm70Fp8LinearMethod(LinearMethodBase):  # type: ignore[misc]
    """A linear layer with FP8 weights through `torch.ops.sm70.dense_w8a16`; one instance a layer.

    `activation` is the SiLU·mul module that follows a gate and up; where it is set, both are one operator.
    """

    def __init__(self, scheme: Scheme, shards: list[str]) -> None:
        self.scheme = scheme
        self.shards = shards
        self.activation: Sm70SiluAndMul | None = None
        self.unfused_reason: str | None = None
        self.operator = operator("dense_w8a16")
        self.dummy = fp8_weights.loads_random_weights()
        self.loaded: dict[str, set[ShardId]] = {}
        self.pieces: list[tuple[int, int, float]] = []

    @property
    def block(self) -> bool:
        return self.scheme.kind == "block"

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        *_: object,
        weight_loader: Callable[..., None],
        **_rest: object,
    ) -> None:
        """Register `weight` and the scale parameter, in the checkpoint's order."""
        k, n = input_size_per_partition, sum(output_partition_sizes)
        shards_k = k != input_size
        if self.block and shards_k and k % BLOCK:
            raise WeightError(
                f"{self.shards[0]} has {k} inputs on a rank, no multiple of {BLOCK}, the size of its scales' blocks: "
                "serve it with fewer ranks"
            )
        weight = ModelWeightParameter(
            data=torch.empty(n, k, dtype=torch.float8_e4m3fn),
            input_dim=1,
            output_dim=0,
            weight_loader=self._checking(layer, "weight", weight_loader),
        )
        step = fp8_weights.step_of(output_partition_sizes) if self.block else 1
        columns = -(-k // BLOCK) if self.block else 1
        scale = ScaleParameter(
            data=torch.empty(n // step, columns, dtype=torch.float32),
            step=step,
            shards_k=shards_k and self.block,
            weight_loader=self._checking(layer, self.scheme.scale, weight_loader),
        )
        layer.register_parameter("weight", weight)
        layer.register_parameter(self.scheme.scale, scale)

    def _checking(self, layer: torch.nn.Module, leaf: str, loader: Callable[..., None]) -> Callable[..., None]:
        """Return a weight loader that checks a tensor, notes that it came, and hands it to vLLM's."""
        seen = self.loaded.setdefault(leaf, set())

        def load(param: torch.nn.Parameter, loaded: torch.Tensor, shard: ShardId = None) -> None:
            name = f"{self._shard_name(layer, shard)}.{leaf}"
            rows = rows_of_shard(layer, shard)
            if leaf == "weight":
                loaded = fp8_weights.checked_weight(name, loaded, rows, layer.input_size)
            else:
                loaded = fp8_weights.expanded_scales(name, loaded, rows, layer.input_size, self.block)
            loader(param, loaded, *(() if shard is None else (shard,)))
            seen.update(shard if isinstance(shard, tuple) else shards_in(layer) if shard is None else (shard,))

        return load

    def _shard_name(self, layer: torch.nn.Module, shard: ShardId) -> str:
        if shard is None or len(self.shards) == 1:
            return self.shards[0]
        if isinstance(shard, str):
            return self.shards["qkv".index(shard)]
        if len(self.shards) == len(layer.output_sizes):
            return self.shards[shard if isinstance(shard, int) else shard[0]]
        # The query, key and value of a gated delta net are one tensor, its last part (z) is another.
        return self.shards[-1 if shard == len(layer.output_sizes) - 1 else 0]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Put the weight into fragment order and free the checkpoint's. Raises WeightError, one line."""
        weight, scale = layer.weight.data, getattr(layer, self.scheme.scale).data
        step = getattr(layer, self.scheme.scale).step
        if self.dummy:
            scale.fill_(1.0)
        else:
            self._check_complete(layer)
        gated = self.activation is not None and (not self.block or fp8_weights.can_gate(scale, step))
        if self.activation is not None and not gated:
            self.unfused_reason = "blocks of scales do not begin where this rank's gate and up begin"
            logger.warning("%s: SiLU runs apart from gate and up, because %s", self.shards[0], self.unfused_reason)
        try:
            pieces = fp8_weights.pack_layer(weight, scale, block=self.block, step=step, gated=gated)
        except ValueError as error:
            raise WeightError(f"{' + '.join(self.shards)}: {error}: the checkpoint is damaged") from error
        del weight, scale
        delattr(layer, "weight")
        delattr(layer, self.scheme.scale)
        self.pieces = fp8_weights.place(layer, pieces)
        if gated:
            assert self.activation is not None
            self.activation.fused = True
            self.operator = operator("dense_w8a16_silu_mul")

    def _check_complete(self, layer: torch.nn.Module) -> None:
        for leaf, seen in self.loaded.items():
            missing = [shard for shard in shards_in(layer) if shard not in seen]
            if missing:
                raise WeightError(f"the checkpoint has no tensor {self._shard_name(layer, missing[0])}.{leaf}")

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x · Wᵀ + bias [..., N]; silu(gate) · up [..., N / 2] where the activation is fused."""
        return fp8_weights.multiply(layer, self.pieces, x, bias, self.operator)


def shards_in(layer: torch.nn.Module) -> Iterable[ShardId]:
    """Return the shard ids under which the parts of a layer are loaded."""
    if isinstance(layer, QKVParallelLinear):
        return ("q", "k", "v")
    return range(len(layer.output_sizes)) if isinstance(layer, MergedColumnParallelLinear) else (None,)


def rows_of_shard(layer: torch.nn.Module, shard: ShardId) -> int:
    """Return the rows that a tensor of the checkpoint has, for the whole layer or a shard of it."""
    if isinstance(layer, QKVParallelLinear) and shard is not None:
        heads = layer.total_num_heads if shard == "q" else layer.total_num_kv_heads
        return int(heads * (layer.v_head_size if shard == "v" else layer.head_size))
    if isinstance(layer, MergedColumnParallelLinear) and shard is not None:
        return sum(layer.output_sizes[i] for i in (shard if isinstance(shard, tuple) else (shard,)))
    return int(layer.output_size)


def register() -> None:
    """Let our configs answer for the `quant_method`s fp8 and compressed-tensors in this process."""
    from vllm.model_executor.layers.quantization import _CUSTOMIZED_METHOD_TO_QUANT_CONFIG as REGISTERED

    for config in (Sm70Fp8Config, Sm70CompressedTensorsConfig):
        if REGISTERED.get(config.name) is not config:
            register_quantization_config(config.name)(config)
