"""Makes a tiny checkpoint of Qwen3.8-27B's architecture: random weights from a fixed seed, in the FP8 release's layout.

`python -m tests.models_made.tiny_qwen FOLDER [--layers N] [--seed S]` writes a folder that vLLM serves: hybrid layers
(every fourth is full attention), 24 query and 4 KV heads, 16 key and 48 value heads of the gated delta net, FP8 weights
with one BF16 scale for each 128 × 128 block where the release has them, everything else in BF16. Every width divides by
four ranks at whole blocks. The tokenizer has one token for each byte. There is no vision tower: serve it for text only.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BLOCK = 128
FP8_MAX = 448.0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
VIDEO = "<|video_pad|>"
EOS = SPECIAL[0]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """The widths of a model; heads are those of Qwen3.8-27B."""

    layers: int = 4
    hidden: int = 256
    intermediate: int = 1024
    vocabulary: int = 512
    heads: int = 24
    kv_heads: int = 4
    head: int = 128
    key_heads: int = 16
    value_heads: int = 48
    gdn_head: int = 32
    width: int = 4
    interval: int = 4

    @property
    def layer_types(self) -> list[str]:
        return ["full_attention" if (i + 1) % self.interval == 0 else "linear_attention" for i in range(self.layers)]


class _Weights:
    """Collects tensors; all randomness comes from one generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.tensors: dict[str, torch.Tensor] = {}
        self.unquantised: list[str] = []

    def random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator) * scale

    def plain(self, name: str, value: torch.Tensor) -> None:
        self.tensors[name] = value.to(torch.bfloat16)

    def linear(self, name: str, rows: int, columns: int) -> None:
        """An FP8 weight [rows, columns] with `weight_scale_inv` [rows / 128, columns / 128]."""
        weight = self.random(rows, columns, scale=columns**-0.5)
        blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        # The stored scale is BF16, so the weight is divided by what will be read back.
        scale = (blocks.abs().amax((1, 3)) / FP8_MAX * 1.01).to(torch.bfloat16)
        packed = (blocks / scale.float()[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX)
        self.tensors[f"{name}.weight"] = packed.view(rows, columns).to(torch.float8_e4m3fn)
        self.tensors[f"{name}.weight_scale_inv"] = scale

    def kept(self, name: str, rows: int, columns: int, scale: float | None = None) -> None:
        """A weight that the release leaves in BF16 and names in its ignore list."""
        self.plain(f"{name}.weight", self.random(rows, columns, scale=columns**-0.5 if scale is None else scale))
        self.unquantised.append(name)


def make(folder: Path, shape: Shape | None = None, seed: int = 20261201) -> Path:
    """Write the checkpoint into `folder`, which is made; returns it. The same arguments give the same bytes."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    weights = _weights(shape, seed)
    save_file(weights.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = write_tokenizer(folder, shape.vocabulary)
    _write(folder / "config.json", _config(shape, ids, weights.unquantised))
    _write(folder / "generation_config.json", {"eos_token_id": [ids[EOS]], "bos_token_id": ids[EOS]})
    return folder


def _weights(shape: Shape, seed: int) -> _Weights:
    weights = _Weights(seed)
    root = "model.language_model"
    weights.kept(f"{root}.embed_tokens", shape.vocabulary, shape.hidden, scale=1.0)
    for layer, kind in enumerate(shape.layer_types):
        name = f"{root}.layers.{layer}"
        if kind == "linear_attention":
            _linear_attention(weights, f"{name}.linear_attn", shape)
        else:
            _full_attention(weights, f"{name}.self_attn", shape)
        _mlp_and_norms(weights, name, shape)
    weights.plain(f"{root}.norm.weight", weights.random(shape.hidden, scale=0.05))
    weights.kept("lm_head", shape.vocabulary, shape.hidden, scale=0.5)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        weights.plain(f"mtp.{norm}.weight", weights.random(shape.hidden, scale=0.05))
    weights.kept("mtp.fc", shape.hidden, 2 * shape.hidden)
    _full_attention(weights, "mtp.layers.0.self_attn", shape)
    _mlp_and_norms(weights, "mtp.layers.0", shape)
    return weights


def _linear_attention(weights: _Weights, name: str, shape: Shape) -> None:
    keys, values = shape.key_heads * shape.gdn_head, shape.value_heads * shape.gdn_head
    weights.linear(f"{name}.in_proj_qkv", 2 * keys + values, shape.hidden)
    weights.linear(f"{name}.in_proj_z", values, shape.hidden)
    for gate in ("a", "b"):
        weights.kept(f"{name}.in_proj_{gate}", shape.value_heads, shape.hidden)
    weights.linear(f"{name}.out_proj", shape.hidden, values)
    weights.plain(f"{name}.conv1d.weight", weights.random(2 * keys + values, 1, shape.width, scale=0.5))
    # Decays between 0.6 and 0.98 a token: a prompt's beginning still shows at its end.
    weights.plain(f"{name}.A_log", weights.random(shape.value_heads, scale=0.5) - 2.0)
    weights.plain(f"{name}.dt_bias", weights.random(shape.value_heads, scale=0.5))
    weights.plain(f"{name}.norm.weight", 1 + weights.random(shape.gdn_head, scale=0.05))


def _full_attention(weights: _Weights, name: str, shape: Shape) -> None:
    width = shape.heads * shape.head
    weights.linear(f"{name}.q_proj", 2 * width, shape.hidden)  # each head's query, then its output gate
    for each in ("k", "v"):
        weights.linear(f"{name}.{each}_proj", shape.kv_heads * shape.head, shape.hidden)
    weights.linear(f"{name}.o_proj", shape.hidden, width)
    for each in ("q", "k"):
        weights.plain(f"{name}.{each}_norm.weight", weights.random(shape.head, scale=0.05))


def _mlp_and_norms(weights: _Weights, name: str, shape: Shape) -> None:
    for each in ("gate", "up"):
        weights.linear(f"{name}.mlp.{each}_proj", shape.intermediate, shape.hidden)
    weights.linear(f"{name}.mlp.down_proj", shape.hidden, shape.intermediate)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights.plain(f"{name}.{norm}.weight", weights.random(shape.hidden, scale=0.05))


def write_tokenizer(folder: Path, size: int) -> dict[str, int]:
    """Write a tokenizer of one token a byte and `size` in all; returns the ids of the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = (*SPECIAL, VIDEO)
    tokenizer.add_special_tokens(list(names))
    # Every row of the head has a token, so that whatever is sampled can be written.
    tokenizer.add_tokens([f"<{number}>" for number in range(len(alphabet) + len(names), size)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    _write(folder / "tokenizer_config.json", settings)
    return {name: number for name, number in tokenizer.get_vocab().items() if name in names}


def _config(shape: Shape, ids: dict[str, int], unquantised: list[str]) -> dict[str, Any]:
    rotated = shape.head // 8  # pairs: a quarter of the head is rotated
    section = [rotated - 2 * (rotated // 3), rotated // 3, rotated // 3]
    text = {
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": ids[EOS],
        "eos_token_id": ids[EOS],
        "dtype": "bfloat16",
        "full_attention_interval": shape.interval,
        "layer_types": shape.layer_types,
        "head_dim": shape.head,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "linear_conv_kernel_dim": shape.width,
        "linear_key_head_dim": shape.gdn_head,
        "linear_num_key_heads": shape.key_heads,
        "linear_value_head_dim": shape.gdn_head,
        "linear_num_value_heads": shape.value_heads,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 32768,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "use_cache": True,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": section,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
    }
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": shape.hidden,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids[VIDEO],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": text,
        "vision_config": vision,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [BLOCK, BLOCK],
            # The vision tower is BF16 in the release; vLLM builds it on no device where no images are served.
            "modules_to_not_convert": [*unquantised, "model.visual"],
        },
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--seed", type=int, default=20261201)
    options = parser.parse_args()
    print(make(options.folder, Shape(layers=options.layers), options.seed))


if __name__ == "__main__":
    main()
