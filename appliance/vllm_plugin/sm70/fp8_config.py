"""Our quantisation configs for `fp8` and `compressed-tensors`: which method loads and computes each layer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from appliance.vllm_plugin.sm70 import fp8_scheme, fp8_weights
from appliance.vllm_plugin.sm70.checkpoint_layout import shards_of
from appliance.vllm_plugin.sm70.fp8_weights import WeightError
from appliance.vllm_plugin.sm70.linear_fp8 import Sm70Fp8LinearMethod
from appliance.vllm_plugin.sm70.lm_head import Sm70Fp8HeadMethod

if TYPE_CHECKING:
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

KV_SCALES = ("q_scale", "k_scale", "v_scale", "prob_scale")
NO_SCALE = -1.0
"""vLLM's sign that the checkpoint gave no scale."""

logger = logging.getLogger("vllm.appliance.sm70")


class Sm70Fp8Config(QuantizationConfig):  # type: ignore[misc]
    """The quantisation config of a checkpoint with `quant_method` fp8: FP8 weights, scales a block or a row."""

    name = "fp8"
    answers_for_heads = True
    """What our head looks for, which vLLM builds without a config."""

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
            return UnquantizedEmbeddingMethod() if scheme is None else Sm70Fp8HeadMethod(scheme, prefix)
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


def register() -> None:
    """Let our configs answer for the `quant_method`s fp8 and compressed-tensors in this process."""
    from vllm.model_executor.layers.quantization import _CUSTOMIZED_METHOD_TO_QUANT_CONFIG as REGISTERED

    for config in (Sm70Fp8Config, Sm70CompressedTensorsConfig):
        if REGISTERED.get(config.name) is not config:
            register_quantization_config(config.name)(config)
