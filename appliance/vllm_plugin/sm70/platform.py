"""The platform on GPUs of compute capability 7.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.cuda import CudaPlatform

from appliance.vllm_plugin.sm70 import platform_rules as rules

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

BACKENDS = ("CUSTOM", "TRITON_ATTN")
"""Ours, and the one of upstream's that runs on SM70, without tensor cores."""

WORKER = "appliance.vllm_plugin.sm70.worker.Sm70Worker"


class Sm70Platform(CudaPlatform):  # type: ignore[misc]
    """vLLM's CUDA platform; `_enum` stays CUDA, so that its operators dispatch to their CUDA versions."""

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float16]

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        rules.refuse_dtype(dtype)

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        rules.refuse_method(quant)

    @classmethod
    def supports_fp8(cls) -> bool:
        """No FP8 arithmetic: weights of eight bits are served by our own methods."""
        return False

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        super().apply_config_platform_defaults(vllm_config)
        rules.apply_defaults(vllm_config)
        rules.set_capture_sizes(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        super().check_and_update_config(vllm_config)
        rules.check(vllm_config)

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        rules.refuse_backend(None if selected_backend is None else selected_backend.name, BACKENDS)
        if selected_backend is not None and selected_backend.name != "CUSTOM":
            path: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
            return path
        return custom_backend(attn_selector_config, cls.get_device_capability())


def custom_backend(attn_selector_config: AttentionSelectorConfig, capability: Any) -> str:  # noqa: ANN401
    """Return our backend's path. Raises ValueError, one line, with what of the layer it does not serve."""
    from appliance.vllm_plugin.sm70.attention import Sm70AttentionBackend

    reasons = Sm70AttentionBackend.validate_configuration(
        device_capability=capability, **attn_selector_config._asdict()
    )
    if reasons:
        raise ValueError(f"no attention backend for this layer on SM70: {', '.join(reasons)} ({attn_selector_config})")
    return rules.ATTENTION
