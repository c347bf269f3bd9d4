"""What both of our platforms decide about a configuration: types, methods, backends, operators, graphs, compile key."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch

from appliance.vllm_plugin.sm70 import routes
from appliance.vllm_plugin.sm70.platform_choice import PlatformError

if TYPE_CHECKING:
    from collections.abc import Iterable

METHODS = ("fp8", "compressed-tensors")
ATTENTION = "appliance.vllm_plugin.sm70.attention.Sm70AttentionBackend"

ROUTE_OF_OP = {"GemmaRMSNorm": "gemma_rms_norm", "RMSNormGated": "gated_rms_norm", "SiluAndMul": "silu_mul"}
"""Operators of ours that a route's switch turns off; the others have no switch, the model is not served without."""

LOAD_FORMATS = ("auto", "hf", "safetensors", "dummy")
"""The formats whose loaders are ours, checkpoint_loader.register; the others would load past its checks."""

MOST_VERIFY_ROWS = 8

logger = logging.getLogger("vllm.appliance.sm70")


def refuse_dtype(dtype: torch.dtype) -> None:
    """Raise ValueError, one line, for any type of activations but float16."""
    if dtype != torch.float16:
        name = str(dtype).removeprefix("torch.")
        what = "SM70 has no bfloat16 arithmetic" if dtype == torch.bfloat16 else "the SM70 operators compute in float16"
        raise ValueError(f"--dtype {name} is not served: {what}; set --dtype half (a BF16 checkpoint is converted)")


def refuse_method(method: str) -> None:
    """Raise ValueError, one line, for a quantisation method that has no linear method of ours."""
    if method not in METHODS:
        raise ValueError(
            f"quantization {method} is not served on SM70: this build serves {', '.join(METHODS)} with FP8 weights, "
            "and unquantised FP16"
        )


def refuse_load_format(load_format: str) -> None:
    """Raise ValueError, one line, for a format of which the weights would not come through our loader."""
    if load_format not in LOAD_FORMATS:
        raise ValueError(
            f"--load-format {load_format} is not served on SM70: this build loads {', '.join(LOAD_FORMATS)}, each "
            "tensor held against the checkpoint's ignore list (dummy: random weights)"
        )


def refuse_backend(selected: str | None, supported: Iterable[str]) -> None:
    """Raise ValueError, one line, for an attention backend that is asked for and does not run on SM70."""
    names = tuple(supported)
    if selected is not None and selected not in names:
        raise ValueError(f"attention backend {selected} does not run on SM70: supported are {', '.join(names)}")


def switches(additional_config: Any) -> dict[str, bool]:  # noqa: ANN401 - whatever the user wrote
    """Return `additional_config["sm70"]`, which routes are switched. Raises ValueError, one line, for another form."""
    own = additional_config.get("sm70", {}) if isinstance(additional_config, dict) else {}
    if not isinstance(own, dict):
        raise ValueError(f'additional_config["sm70"] is {own!r}; wanted is an object of route names and true or false')
    routes.check_switches(own, os.environ)
    return own


def our_ops() -> tuple[str, ...]:
    """Return the class names by which vLLM enables our operators."""
    from appliance.vllm_plugin.sm70 import activation, lm_head, norms

    return (*norms.CUSTOM_OPS, *activation.CUSTOM_OPS, *lm_head.CUSTOM_OPS)


def enable_ops(custom_ops: list[str], switched: dict[str, bool], names: Iterable[str]) -> None:
    """Enable our operators in `custom_ops`: with Inductor, one that is not listed runs vLLM's torch version unseen."""
    for name in names:
        on = switched.get(ROUTE_OF_OP.get(name, ""), True)
        if f"-{name}" in custom_ops or f"+{name}" in custom_ops:
            continue
        custom_ops.append(f"+{name}" if on else f"-{name}")


def disabled_ops(custom_ops: list[str], names: Iterable[str]) -> list[str]:
    """Return those of our operators that this configuration would not run."""
    everything = "all" in custom_ops
    return [name for name in names if f"-{name}" in custom_ops or (not everything and f"+{name}" not in custom_ops)]


def check_ops(custom_ops: list[str], switched: dict[str, bool], names: Iterable[str]) -> None:
    """Raise PlatformError, one line, where an operator is off that neither a switch nor the user turned off."""
    silent = [
        name
        for name in disabled_ops(custom_ops, names)
        if switched.get(ROUTE_OF_OP.get(name, ""), True) and f"-{name}" not in custom_ops
    ]
    if silent:
        raise PlatformError(
            f"the operators {', '.join(silent)} would run vLLM's own version: custom_ops is {custom_ops}, "
            "and something after our platform's defaults changed it"
        )
    if off := disabled_ops(custom_ops, names):
        logger.warning("Off by configuration, and served by vLLM's own version: %s", ", ".join(off))


def capture_sizes(sequences: int, rows: int, most_tokens: int) -> list[int]:
    """Return the numbers of tokens to capture: every number of sequences in full, then vLLM's steps for mixed batches.

    `rows` are a sequence's tokens after its prompt: one, or those of a verification step.
    """
    decode = range(rows, sequences * rows + 1, rows)
    least = {1, 2, 4}
    mixed = [*range(8, min(2 * sequences * rows, 512, 256) + 1, 8), *range(256, min(2 * sequences * rows, 512) + 1, 16)]
    return sorted(size for size in {*decode, *least, *mixed} if size <= most_tokens)


def set_capture_sizes(vllm_config: Any) -> None:  # noqa: ANN401 - vllm is not analysed
    """Let each number of sequences after their prompts have a full graph of its own, unless the user gave the sizes."""
    compilation = vllm_config.compilation_config
    if compilation.cudagraph_capture_sizes is not None or vllm_config.model_config is None:
        return
    if vllm_config.model_config.enforce_eager:
        return
    scheduler = vllm_config.scheduler_config
    speculative = vllm_config.speculative_config
    rows = 1 + (int(speculative.num_speculative_tokens) if speculative else 0)
    if rows > MOST_VERIFY_ROWS:
        raise ValueError(
            f"num_speculative_tokens is {rows - 1}; graphs exist for at most {MOST_VERIFY_ROWS} rows of a verification "
            f"step: set it to {MOST_VERIFY_ROWS - 1} or fewer"
        )
    if compilation.max_cudagraph_capture_size is None:
        sizes = capture_sizes(scheduler.max_num_seqs, rows, scheduler.max_num_batched_tokens)
        compilation.cudagraph_capture_sizes = sizes
        compilation.max_cudagraph_capture_size = sizes[-1]


def add_build_hashes(additional_config: dict[str, Any]) -> None:
    """Put the hashes of kernels and plugin into what vLLM's compile cache is keyed by.

    vLLM hashes the files that it traces; kernels behind an opaque operator are none of them.
    """
    from appliance.vllm_plugin.register import source_hash
    from appliance.vllm_plugin.sm70 import operators

    additional_config["sm70_build"] = {"plugin": source_hash(), "kernels": operators.source_hash()}


def apply_defaults(vllm_config: Any) -> None:  # noqa: ANN401
    """Before vLLM's own defaults: enable our operators, choose graph sizes, add the hashes."""
    if vllm_config.additional_config is None:
        vllm_config.additional_config = {}
    switched = switches(vllm_config.additional_config)
    enable_ops(vllm_config.compilation_config.custom_ops, switched, our_ops())
    # The layer that would read it is replaced; asking for FlashInfer would only look for it.
    vllm_config.additional_config.setdefault("gdn_prefill_backend", "triton")
    add_build_hashes(vllm_config.additional_config)


def check(vllm_config: Any) -> None:  # noqa: ANN401
    """After vLLM's own decisions: refuse what is not served, and hold that our operators are on."""
    if vllm_config.model_config is not None:
        refuse_dtype(vllm_config.model_config.dtype)
    refuse_load_format(vllm_config.load_config.load_format)
    compilation = vllm_config.compilation_config
    check_ops(compilation.custom_ops, switches(vllm_config.additional_config), our_ops())
    if vllm_config.cache_config.cache_dtype == "fp8":
        logger.info("--kv-cache-dtype fp8 means E4M3, with the checkpoint's scales where it has them")
    scheduler = vllm_config.scheduler_config
    if scheduler.scheduler_cls is None:
        from appliance.vllm_plugin.sm70.sentinels import SCHEDULER

        scheduler.scheduler_cls = SCHEDULER
