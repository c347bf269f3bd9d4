"""Model loaders that hold a checkpoint against the model: a tensor lands where its kind belongs, or the load stops."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm.config import get_current_vllm_config
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.models.utils import PPMissingLayer, StageMissingLayer

from appliance.vllm_plugin.sm70 import full_attention
from appliance.vllm_plugin.sm70.checkpoint_layout import Absent, TensorCheck, canonical, shards_of, unmatched
from appliance.vllm_plugin.sm70.fp8_config import Sm70Fp8Config
from appliance.vllm_plugin.sm70.linear_fp8 import Sm70Fp8LinearMethod, pair_gate_up
from appliance.vllm_plugin.sm70.lm_head import Sm70Fp8HeadMethod
from appliance.vllm_plugin.sm70.platform_rules import LOAD_FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from vllm.config import ModelConfig

DUMMY = "dummy"
"""The format that loads nothing and so has nothing to check."""

KV_PARAMETERS = ("k_scale", "v_scale", "q_scale", "prob_scale")

logger = logging.getLogger("vllm.appliance.sm70")


class Sm70ModelLoader(DefaultModelLoader):  # type: ignore[misc]
    """vLLM's loader, with gate and up paired for fusion and every tensor checked on its way."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Load the weights. Raises LayoutError, one line, for an ignore entry or a tensor that does not fit."""
        prepare(model)
        self._check = check_of(model, model_config)
        super().load_weights(model, model_config)
        if self._check is not None:
            self._check.finish()

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super().get_all_weights(model_config, model):
            if self._check is not None:
                self._check.see(name, str(tensor.dtype).removeprefix("torch."))
            yield name, tensor

    _check: TensorCheck | None = None


class Sm70DummyLoader(DummyModelLoader):  # type: ignore[misc]
    """vLLM's loader of random weights, with gate and up paired for fusion."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        prepare(model)
        super().load_weights(model, model_config)


def prepare(model: torch.nn.Module) -> None:
    """Tell a fresh model's layers what they cannot see for themselves, before its weights come."""
    pair_gate_up(model)
    full_attention.bind(model)


def check_of(model: torch.nn.Module, model_config: ModelConfig) -> TensorCheck | None:
    """Return the check for one load; None where the config is not ours, or the model is a drafter or a pipeline stage.

    A drafter is loaded from a part of the checkpoint, its own loader picks what it needs.
    Raises LayoutError for an ignore entry that names nothing.
    """
    vllm_config = get_current_vllm_config()
    config = vllm_config.quant_config
    if not isinstance(config, Sm70Fp8Config) or model_config is not vllm_config.model_config:
        return None
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        logger.warning("Tensors are not held against the ignore list: a pipeline stage has only some of the modules")
        return None
    absent = absent_parts(model)
    packed = config.packed_modules_mapping
    modules = {canonical(name) for name, _ in model.named_modules()}
    modules |= {shard for name, _ in model.named_modules() for shard in shards_of(name, packed)}
    excused = unmatched(config.layout.ignore, modules, absent)
    for reason in sorted(set(excused.values())):
        count = sum(each == reason for each in excused.values())
        logger.info("%d entries of the checkpoint's ignore list name modules that are not built: %s", count, reason)
    return tensor_check(model, packed, absent)


def absent_parts(model: torch.nn.Module) -> Absent:
    """Return which parts of the checkpoint the model does not build.

    The MTP layer is a drafter's; the vision tower is left out where no images are asked for or the model is text only.
    """
    reasons = {"mtp": "the MTP layer belongs to a drafter, which loads it by itself"}
    visual = getattr(model, "visual", None)
    if visual is None or isinstance(visual, StageMissingLayer):
        reasons["visual"] = "the vision tower is not built, because this engine serves text only"
    return Absent(reasons)


def tensor_check(model: torch.nn.Module, packed: Mapping[str, Sequence[str]], absent: Absent) -> TensorCheck:
    """Return the check that follows the tensors of a load into `model`."""
    quantised: dict[str, str] = {}
    expected: set[str] = set()
    optional: set[str] = set()
    for module_name, module in model.named_modules():
        if isinstance(module, (PPMissingLayer, StageMissingLayer)):
            continue
        method = getattr(module, "quant_method", None)
        if isinstance(method, (Sm70Fp8LinearMethod, Sm70Fp8HeadMethod)):
            quantised |= dict.fromkeys(shards_of(module_name, packed), method.scheme.scale)
        for leaf, _ in module.named_parameters(recurse=False):
            names = {f"{shard}.{leaf}" if shard else leaf for shard in shards_of(module_name, packed)}
            (optional if leaf in KV_PARAMETERS else expected).update(names)
    return TensorCheck(quantised, frozenset(expected), absent, frozenset(optional | tied(model)))


def tied(model: torch.nn.Module) -> set[str]:
    """Return the names of a head's tensors where the embedding serves as head: a checkpoint may carry them or not."""
    named = {canonical(name): module for name, module in model.named_modules(remove_duplicate=False)}
    head = named.get("lm_head")
    return {"lm_head.weight"} if head is not None and head is named.get("embed_tokens") else set()


def register() -> None:
    """Replace vLLM's loaders of checkpoints and of random weights in this process."""
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as REGISTERED

    for load_format in LOAD_FORMATS:
        loader = Sm70DummyLoader if load_format == DUMMY else Sm70ModelLoader
        if REGISTERED.get(load_format) is not loader:
            register_model_loader(load_format)(loader)
