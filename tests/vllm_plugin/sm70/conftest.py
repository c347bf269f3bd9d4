"""Real vLLM configs and layers in this process, as one rank of a group; what is registered is taken back."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.vllm_plugin.sm70.synthetic_checkpoint import Checkpoint


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """vLLM's process groups, with this process alone."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.fixture
def sm70(gloo: None) -> Iterator[None]:
    """Our layers registered, for one test."""
    from vllm.model_executor import custom_op, model_loader
    from vllm.model_executor.layers import quantization

    from appliance.vllm_plugin.sm70 import activation, checkpoint_loader, fp8_config, gdn, lm_head, norms

    registries = (
        custom_op.op_registry_oot,
        quantization._CUSTOMIZED_METHOD_TO_QUANT_CONFIG,
        model_loader._LOAD_FORMAT_TO_MODEL_LOADER,
    )
    before = [dict(registry) for registry in registries]
    dtype = torch.get_default_dtype()
    for ours in (fp8_config, lm_head, norms, activation, checkpoint_loader, gdn):
        ours.register()
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
    # A load that fails leaves vLLM's default type behind.
    torch.set_default_dtype(dtype)


@contextlib.contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """Let vLLM's layers take this process for one rank of a tensor parallel group."""
    from vllm.distributed import parallel_state

    group = parallel_state._TP
    parallel_state._TP = SimpleNamespace(rank_in_group=rank, world_size=ranks)
    try:
        yield
    finally:
        parallel_state._TP = group


@pytest.fixture
def config(sm70: None, tmp_path: Path) -> Callable[..., Any]:
    """Make a VllmConfig for a checkpoint, with our custom ops enabled as the platform does."""
    from vllm.config import CompilationConfig, LoadConfig, ModelConfig, VllmConfig

    from appliance.vllm_plugin.sm70 import activation, lm_head, norms

    enabled = [f"+{name}" for name in (*norms.CUSTOM_OPS, *activation.CUSTOM_OPS, *lm_head.CUSTOM_OPS)]
    number = itertools.count()

    def make(
        checkpoint: Checkpoint,
        *,
        custom_ops: list[str] | None = None,
        load_format: str = "auto",
        additional: dict[str, Any] | None = None,
        images: int = 0,
    ) -> Any:
        folder = checkpoint.write(tmp_path / f"checkpoint-{next(number)}")
        model = ModelConfig(
            model=str(folder),
            dtype="float16",
            skip_tokenizer_init=True,
            max_model_len=256,
            limit_mm_per_prompt={"image": images, "video": images},
        )
        compilation = CompilationConfig(custom_ops=["none", *(enabled if custom_ops is None else custom_ops)])
        return VllmConfig(
            model_config=model,
            load_config=LoadConfig(load_format=load_format, use_tqdm_on_load=False),
            compilation_config=compilation,
            additional_config=additional or {},
        )

    return make


@pytest.fixture
def load(config: Callable[..., Any]) -> Callable[..., Any]:
    """Load a checkpoint with vLLM's own model class and our loader, as one rank."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    def make(checkpoint: Checkpoint, rank: int = 0, ranks: int = 1, **options: Any) -> torch.nn.Module:
        vllm_config = config(checkpoint, **options)
        with as_rank(rank, ranks), set_current_vllm_config(vllm_config):
            model: torch.nn.Module = get_model(vllm_config=vllm_config)
        return model

    return make
