"""Imports what serving on a V100 imports, on a machine that has no GPU, and prints what came of it as one JSON object.

The driver's library is a stand-in whose functions exist and do nothing (appliance.image.engine makes it), and the
platform says that it is a V100. Modules named on the command line must not be asked for.
"""

import importlib
import json
import sys
from importlib.metadata import entry_points
from typing import Any

MODULES = (
    "vllm._C",
    "vllm._moe_C",
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.gdn_attn",
    "vllm.v1.spec_decode.eagle",
    "vllm.model_executor.models.qwen3_5",
    "vllm.model_executor.layers.quantization.fp8",
    "vllm.model_executor.layers.quantization.modelopt",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
)
OPERATORS = ("rms_norm", "rotary_embedding", "silu_and_mul")
GROUPS = ("vllm.general_plugins", "vllm.platform_plugins", "vllm.stat_logger_plugins")


def pretend() -> None:
    """Make vLLM take this machine for one with a V100."""
    import vllm.platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Volta(cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ANN401, ARG003
            return DeviceCapability(7, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
            return "Tesla V100"

    vllm.platforms._current_platform = Volta()


def main(unwanted: list[str]) -> dict[str, Any]:
    """Return the versions, what failed, which unwanted packages were loaded, which plugins there are."""
    import torch

    pretend()
    failed = {}
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            failed[name] = f"{type(error).__name__}: {error}"
    for name in OPERATORS:
        if not hasattr(torch.ops._C, name):
            failed[f"operator {name}"] = "not registered by vllm._C"
    plugins = {}
    for group in GROUPS:
        for point in entry_points(group=group):
            try:
                plugins[point.name] = callable(point.load())
            except Exception as error:  # noqa: BLE001
                failed[f"plugin {point.name}"] = f"{type(error).__name__}: {error}"
    import vllm

    return {
        "torch": torch.__version__,
        "architectures": torch._C._cuda_getArchFlags(),
        "vllm": vllm.__version__,
        "failed": failed,
        "plugins": plugins,
        "unwanted": sorted({name.partition(".")[0] for name in sys.modules} & set(unwanted)),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
