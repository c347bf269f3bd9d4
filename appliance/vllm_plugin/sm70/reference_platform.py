"""The platform that runs the SM70 plugin on CPUs, every operator by its reference: for tests and for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.platforms.cpu import CpuPlatform

from appliance.vllm_plugin.sm70 import platform_rules as rules

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

WORKER = "appliance.vllm_plugin.sm70.reference_worker.Sm70ReferenceWorker"


class Sm70ReferencePlatform(CpuPlatform):  # type: ignore[misc]
    """vLLM's CPU platform with the SM70 platform's rules."""

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
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        super().apply_config_platform_defaults(vllm_config)
        rules.apply_defaults(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        # vLLM's CPU platform sets a page of its own backend, and knows no FP8 KV cache; our backend serves both.
        page_size, kv_dtype = cache.block_size, cache.cache_dtype
        cache.cache_dtype = "auto"
        super().check_and_update_config(vllm_config)
        cache.block_size, cache.cache_dtype = page_size, kv_dtype
        rules.check(vllm_config)

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,  # noqa: ARG003
    ) -> str:
        rules.refuse_backend(None if selected_backend is None else selected_backend.name, ("CUSTOM",))
        from appliance.vllm_plugin.sm70.attention import Sm70AttentionBackend

        # No capability: a CPU has none, and the references ask for none.
        reasons = Sm70AttentionBackend.validate_configuration(device_capability=None, **attn_selector_config._asdict())
        if reasons:
            raise ValueError(f"no attention backend for this layer: {', '.join(reasons)} ({attn_selector_config})")
        return rules.ATTENTION
