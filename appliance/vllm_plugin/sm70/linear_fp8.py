"""The linear method of dense layers with FP8 weights. Weights keep their 8 bits and scales; activations stay FP16."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.linear import (
    LinearMethodBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    register_weight_loader_v2_supported_method,
)
from vllm.model_executor.parameter import ModelWeightParameter

from appliance.vllm_plugin.sm70 import fp8_weights
from appliance.vllm_plugin.sm70.activation import Sm70SiluAndMul
from appliance.vllm_plugin.sm70.fp8_scheme import BLOCK
from appliance.vllm_plugin.sm70.fp8_weights import ScaleParameter, WeightError
from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from appliance.vllm_plugin.sm70.fp8_scheme import Scheme

ShardId = str | int | tuple[int, ...] | None
"""What vLLM calls a matrix of a fused layer: q, k, v, a number, several numbers for one tensor; None for a whole."""

logger = logging.getLogger("vllm.appliance.sm70")


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


def pair_gate_up(model: torch.nn.Module) -> int:
    """Let each FP8 gate and up of a model know the activation that follows it; returns how many there are.

    To be called before weights are packed. A layer that can, then computes silu(gate) · up in one operator.
    """
    pairs = 0
    for module in model.modules():
        method = getattr(getattr(module, "gate_up_proj", None), "quant_method", None)
        activation = getattr(module, "act_fn", None)
        if not isinstance(method, Sm70Fp8LinearMethod) or type(activation) is not Sm70SiluAndMul:
            continue
        # A bias would have to be added before the activation.
        if module.gate_up_proj.bias is None and activation.ours:
            method.activation = activation
            pairs += 1
    return pairs
