"""The platform for CUDA, on a machine without it: vLLM's compiled parts are stood in for, its Python is real."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

OURS = "appliance.vllm_plugin.sm70.platform"


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our platform class; its card has compute capability 7.0."""
    import vllm.platforms
    from vllm.platforms.interface import DeviceCapability

    for name in ("vllm._C", "vllm._C_stable_libtorch"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("vllm.platforms.cuda", OURS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    kind = importlib.import_module(OURS).Sm70Platform
    monkeypatch.setattr(kind, "get_device_capability", classmethod(lambda *_: DeviceCapability(7, 0)))
    yield kind
    for name in ("vllm.platforms.cuda", OURS):
        sys.modules.pop(name, None)
    assert vllm.platforms.current_platform.is_cpu()


def test_it_stays_a_cuda_platform_so_that_vllms_operators_dispatch_to_cuda(platform: Any) -> None:
    one = platform()
    assert one.is_cuda()
    assert not one.is_out_of_tree()


def test_a_bf16_checkpoint_is_served_in_float16_and_bfloat16_is_refused(platform: Any) -> None:
    assert platform().supported_dtypes == [torch.float16]
    with pytest.raises(ValueError, match="set --dtype half"):
        platform.check_if_supports_dtype(torch.bfloat16)


def test_other_methods_and_backends_are_refused(platform: Any) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    with pytest.raises(ValueError, match="quantization gptq is not served on SM70"):
        platform.verify_quantization("gptq")
    with pytest.raises(ValueError, match="FLASH_ATTN does not run on SM70: supported are CUSTOM, TRITON_ATTN"):
        platform.get_attn_backend_cls(AttentionBackendEnum.FLASH_ATTN, selection())


def selection(**changes: Any) -> Any:
    from vllm.v1.attention.selector import AttentionSelectorConfig

    return AttentionSelectorConfig(
        **{"head_size": 256, "dtype": torch.float16, "kv_cache_dtype": "auto", "block_size": 784} | changes
    )


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "fp8_e4m3", "fp8_e5m2"])
def test_our_backend_serves_each_kv_cache_format(platform: Any, kv_cache_dtype: str) -> None:
    path = platform.get_attn_backend_cls(None, selection(kv_cache_dtype=kv_cache_dtype))
    module, _, name = path.rpartition(".")
    backend = getattr(importlib.import_module(module), name)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    # vLLM looks the name up among the members of its enum, and stops at any other.
    assert AttentionBackendEnum[backend.get_name()] is AttentionBackendEnum.CUSTOM
    assert backend.get_kv_cache_shape(10, 784, 1, 256) == (10, 2, 784, 1, 256)


def test_a_layer_that_our_backend_does_not_serve_is_refused_with_the_reason(platform: Any) -> None:
    with pytest.raises(ValueError, match="no attention backend for this layer on SM70: dtype not supported"):
        platform.get_attn_backend_cls(None, selection(dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="block_size not supported"):
        platform.get_attn_backend_cls(None, selection(block_size=24))


def test_a_configuration_gets_our_operators_worker_graphs_and_hashes(platform: Any) -> None:
    from vllm.config import VllmConfig

    from appliance.vllm_plugin.sm70 import platform_rules as rules

    config = VllmConfig()
    config.compilation_config.custom_ops = ["none"]
    config.parallel_config.worker_cls = "auto"
    platform.apply_config_platform_defaults(config)
    platform.check_and_update_config(config)
    assert config.parallel_config.worker_cls == "appliance.vllm_plugin.sm70.worker.Sm70Worker"
    assert {f"+{name}" for name in rules.our_ops()} <= set(config.compilation_config.custom_ops)
    assert set(config.additional_config["sm70_build"]) == {"plugin", "kernels"}
    assert config.scheduler_config.scheduler_cls == "appliance.vllm_plugin.sm70.sentinels.guarded_scheduler"


def test_an_operator_that_somebody_takes_off_the_list_stops_the_start(platform: Any) -> None:
    from vllm.config import VllmConfig

    from appliance.vllm_plugin.sm70.platform_choice import PlatformError

    config = VllmConfig()
    config.compilation_config.custom_ops = ["none"]
    platform.apply_config_platform_defaults(config)
    config.compilation_config.custom_ops.remove("+GemmaRMSNorm")
    with pytest.raises(PlatformError, match="the operators GemmaRMSNorm would run vLLM's own version"):
        platform.check_and_update_config(config)


def test_a_load_format_past_our_loader_stops_the_start(platform: Any) -> None:
    from vllm.config import VllmConfig

    config = VllmConfig()
    platform.apply_config_platform_defaults(config)
    config.load_config.load_format = "tensorizer"
    with pytest.raises(ValueError, match=r"^--load-format tensorizer is not served on SM70: this build loads auto, hf"):
        platform.check_and_update_config(config)
