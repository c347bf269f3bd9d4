"""A small checkpoint of Qwen3.8-27B's architecture, quantised in each way that we serve, and the matrices it holds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, INTERMEDIATE, VOCABULARY = 256, 512, 500
HEADS, KV_HEADS, HEAD = 8, 2, 64
KEY_HEADS, VALUE_HEADS, GDN_HEAD = 4, 8, 64
KEYS, VALUES = KEY_HEADS * GDN_HEAD, VALUE_HEADS * GDN_HEAD
PREFIX = "model.language_model."

Scheme = Literal["fp8-block", "fp8-channel", "ct-channel", "ct-block"]

LINEARS: dict[str, tuple[int, int]] = {
    "layers.0.linear_attn.in_proj_qkv": (2 * KEYS + VALUES, HIDDEN),
    "layers.0.linear_attn.in_proj_z": (VALUES, HIDDEN),
    "layers.0.linear_attn.in_proj_a": (VALUE_HEADS, HIDDEN),
    "layers.0.linear_attn.in_proj_b": (VALUE_HEADS, HIDDEN),
    "layers.0.linear_attn.out_proj": (HIDDEN, VALUES),
    "layers.1.self_attn.q_proj": (2 * HEADS * HEAD, HIDDEN),
    "layers.1.self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "layers.1.self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "layers.1.self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    **{
        f"layers.{layer}.mlp.{name}": shape
        for layer in (0, 1)
        for name, shape in {
            "gate_proj": (INTERMEDIATE, HIDDEN),
            "up_proj": (INTERMEDIATE, HIDDEN),
            "down_proj": (HIDDEN, INTERMEDIATE),
        }.items()
    },
}

SMALL = ("layers.0.linear_attn.in_proj_a", "layers.0.linear_attn.in_proj_b")


def text_config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "full_attention_interval": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "attn_output_gate": True,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": GDN_HEAD,
        "linear_value_head_dim": GDN_HEAD,
        "linear_conv_kernel_dim": 4,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
    }


VISION = {
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 4,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": HIDDEN,
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "deepstack_visual_indexes": [],
}


@dataclass
class Checkpoint:
    """Tensors and quantisation config, to be changed by a test before `write`; `matrices` are exact, in float64."""

    tensors: dict[str, torch.Tensor]
    quantization: dict[str, Any]
    matrices: dict[str, torch.Tensor] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": text_config(),
            "vision_config": VISION,
            "tie_word_embeddings": False,
            "image_token_id": 490,
            "video_token_id": 491,
            "vision_start_token_id": 492,
            "vision_end_token_id": 493,
            "quantization_config": self.quantization,
        }
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: each.contiguous() for name, each in self.tensors.items()}, folder / "model.safetensors")
        return folder


def make(scheme: Scheme = "fp8-block", *, small: bool = False, head: bool | None = None) -> Checkpoint:
    """Return a checkpoint. `small` quantises GDN's a and b too, `head` the LM head (as compressed-tensors does)."""
    numbers = torch.Generator().manual_seed(11)
    head = scheme.startswith("ct") if head is None else head
    checkpoint = Checkpoint({}, quantization(scheme, small, head))
    block = scheme.endswith("block")
    leaf = "weight_scale_inv" if scheme == "fp8-block" else "weight_scale"
    for name, shape in {**LINEARS, "lm_head": (VOCABULARY, HIDDEN)}.items():
        full = name if name == "lm_head" else PREFIX + name
        if (name in SMALL and not small) or (name == "lm_head" and not head):
            plain = (torch.randn(shape, generator=numbers) * 0.05).bfloat16()
            checkpoint.tensors[f"{full}.weight"] = plain
            checkpoint.matrices[name] = plain.double()
            continue
        weight = (torch.randn(shape, generator=numbers) * 60).to(torch.float8_e4m3fn)
        grid = (math.ceil(shape[0] / 128), math.ceil(shape[1] / 128)) if block else (shape[0], 1)
        scale = (torch.rand(grid, generator=numbers) * 0.002 + 0.0005).bfloat16()
        each = scale.double().repeat_interleave(128, 0)[: shape[0]] if block else scale.double()
        each = each.repeat_interleave(128, 1)[:, : shape[1]] if block else each
        checkpoint.tensors |= {f"{full}.weight": weight, f"{full}.{leaf}": scale}
        checkpoint.matrices[name] = weight.double() * each
    for name, sizes in plain_shapes().items():
        values = torch.randn(sizes, generator=numbers) * 0.1
        checkpoint.tensors[PREFIX + name] = values if name.endswith("A_log") else values.bfloat16()
    # What the engine does not build: parts of the vision tower and of the MTP layer.
    checkpoint.tensors["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(192, 64).bfloat16()
    checkpoint.tensors["mtp.fc.weight"] = torch.zeros(HIDDEN, 2 * HIDDEN).bfloat16()
    return checkpoint


def plain_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCABULARY, HIDDEN),
        "norm.weight": (HIDDEN,),
        "layers.0.linear_attn.conv1d.weight": (2 * KEYS + VALUES, 1, 4),
        "layers.0.linear_attn.A_log": (VALUE_HEADS,),
        "layers.0.linear_attn.dt_bias": (VALUE_HEADS,),
        "layers.0.linear_attn.norm.weight": (GDN_HEAD,),
        "layers.1.self_attn.q_norm.weight": (HEAD,),
        "layers.1.self_attn.k_norm.weight": (HEAD,),
    }
    for layer in (0, 1):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"layers.{layer}.{norm}.weight"] = (HIDDEN,)
    return shapes


def quantization(scheme: Scheme, small: bool, head: bool) -> dict[str, Any]:
    ignore = ["model.visual", "mtp.fc", *([] if head else ["lm_head"]), *([] if small else [PREFIX + n for n in SMALL])]
    if scheme.startswith("fp8"):
        native = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ignore}
        return native | ({"weight_block_size": [128, 128]} if scheme == "fp8-block" else {})
    strategy = scheme.removeprefix("ct-")
    weights: dict[str, Any] = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": False,
    }
    if strategy == "block":
        weights["block_structure"] = [128, 128]
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }


def part(rows: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """Return a rank's equal share of a matrix's rows."""
    return rows.chunk(ranks)[rank]


def matrix_of(checkpoint: Checkpoint, module: str, rank: int, ranks: int) -> torch.Tensor:
    """Return the matrix in float64 that a module of vLLM multiplies by on a rank."""
    parent, _, leaf = module.rpartition(".")
    found = {
        name.rpartition(".")[2]: each for name, each in checkpoint.matrices.items() if name.startswith(parent + ".")
    }
    if leaf == "in_proj_qkvz":
        q, k, v = found["in_proj_qkv"].split([KEYS, KEYS, VALUES])
        return torch.cat([part(each, rank, ranks) for each in (q, k, v, found["in_proj_z"])])
    if leaf == "in_proj_ba":
        return torch.cat([part(found[name], rank, ranks) for name in ("in_proj_b", "in_proj_a")])
    if leaf == "qkv_proj":
        # Where ranks outnumber the KV heads, neighbours share one.
        shared = max(1, ranks // KV_HEADS)
        kv = [part(found[name], rank // shared, min(ranks, KV_HEADS)) for name in ("k_proj", "v_proj")]
        return torch.cat([part(found["q_proj"], rank, ranks), *kv])
    if leaf == "gate_up_proj":
        return torch.cat([part(found[name], rank, ranks) for name in ("gate_proj", "up_proj")])
    return found[leaf].chunk(ranks, dim=1)[rank]
