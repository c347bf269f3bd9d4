"""Real `VllmConfig`s of Qwen3.8-27B's dimensions, made on a CPU as they would be on CUDA. Nothing is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TEXT = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 32768,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 4,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "dtype": "float16",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
}

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "fmt": "e4m3"}

DRAFT = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
    "max_position_embeddings": 262144,
    "dtype": "float16",
}

CAPTURED = [1, 2, 4, 8, 16, 24, 32]

RELEASE: dict[str, Any] = {
    "max_model_len": 262144,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 4,
    "kv_cache_dtype": "fp8_e4m3",
    "block_size": 2048,
}
"""The release profile's arguments, with the budget at which the Q8000 specialisation is taken."""

C32: dict[str, Any] = {
    "max_model_len": 33024,
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 32,
    "enable_prefix_caching": False,
}


def as_on_cuda(patch: pytest.MonkeyPatch) -> None:
    """Keep the CPU platform from rewriting a configuration that is meant for CUDA."""
    from vllm.platforms import current_platform

    kind = type(current_platform)
    patch.setattr(kind, "check_and_update_config", classmethod(lambda _cls, _config: None))
    patch.setattr(kind, "support_static_graph_mode", classmethod(lambda _cls: True))


def register_draft() -> None:
    """Let vLLM accept the draft's architecture; a class is given, since a name would be inspected in a process."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

    known = ModelRegistry.get_supported_archs()
    for name, model in (("DFlash2DraftModel", LlamaForCausalLM), ("Eagle3DFlash2DraftModel", Eagle3LlamaForCausalLM)):
        if name not in known:
            ModelRegistry.register_model(name, model)


def build(folder: Path, quantization: dict[str, Any] | None = None, drafts: int = 0, **arguments: Any) -> Any:
    """Return the `VllmConfig` of four ranks for these arguments; `drafts` tokens of DFlash2 where not 0."""
    from vllm.engine.arg_utils import EngineArgs

    text = TEXT | {"quantization_config": FP8 if quantization is None else quantization}
    (folder / "config.json").write_text(json.dumps(text))
    if drafts:
        register_draft()
        (folder / "draft").mkdir(exist_ok=True)
        (folder / "draft" / "config.json").write_text(json.dumps(DRAFT))
        speculation = {"method": "eagle3", "model": str(folder / "draft"), "num_speculative_tokens": drafts}
        arguments["speculative_config"] = speculation
    given: dict[str, Any] = {
        "dtype": "float16",
        "tensor_parallel_size": 4,
        "distributed_executor_backend": "mp",
        "cudagraph_capture_sizes": CAPTURED,
    }
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **(given | arguments)).create_engine_config()
