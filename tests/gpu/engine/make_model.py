"""Write a checkpoint with Qwen3.8-27B's true layer dimensions: `make_model.py FOLDER LAYERS [VOCABULARY]`.

Two folders come out: FOLDER/fp8 as the official FP8 release is laid out (block 128x128 E4M3 with BFloat16 scales, the
same modules quantised), and FOLDER/dequantised, the same weights multiplied out to FP16 for upstream's kernels. Random
weights of a fixed seed; block scales spread as those of trained weights do, so that no block of codes is trivial.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.models_made.tiny_qwen import write_tokenizer

BLOCK = 128
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 5120, 17408, 24, 4, 256
K_HEADS, V_HEADS, LINEAR_DIM, WIDTH = 16, 48, 128, 4
LANGUAGE = "model.language_model."
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def config(layers: int, vocabulary: int) -> dict[str, object]:
    """Return config.json as the official release has it, with fewer layers."""
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)]
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "layer_types": kinds,
        "linear_conv_kernel_dim": WIDTH,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_num_key_heads": K_HEADS,
        "linear_num_value_heads": V_HEADS,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    vision = {
        "model_type": "qwen3_5",
        "depth": 1,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": HIDDEN,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "deepstack_visual_indexes": [],
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": False,
        "image_token_id": vocabulary - 4,
        "video_token_id": vocabulary - 3,
        "vision_start_token_id": vocabulary - 6,
        "vision_end_token_id": vocabulary - 5,
    }


def quantised(rows: int, columns: int, std: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return E4M3 codes [rows, columns] and their block scales [rows/128, columns/128] in BFloat16."""
    weight = torch.randn(rows, columns, device=DEVICE, generator=generator) * std
    spread = torch.exp(0.3 * torch.randn(rows // BLOCK, columns // BLOCK, device=DEVICE, generator=generator))
    blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK) * spread[:, None, :, None]
    scale = (blocks.abs().amax((1, 3)) / 448).bfloat16()
    codes = (blocks / scale.float()[:, None, :, None]).clamp(-448, 448)
    return codes.reshape(rows, columns).to(torch.float8_e4m3fn), scale


def dequantised(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the weights in FP16."""
    blocks = codes.float().view(scale.shape[0], BLOCK, scale.shape[1], BLOCK) * scale.float()[:, None, :, None]
    return blocks.reshape(codes.shape).half()


class Checkpoint:
    """Two folders that are written file by file, with the same weights in FP8 and in FP16."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generator = torch.Generator(DEVICE).manual_seed(20261201)
        self.files: dict[str, dict[str, str]] = {"fp8": {}, "dequantised": {}}
        self.ignored = ["lm_head", f"{LANGUAGE}embed_tokens", "model.visual"]
        for name in self.files:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def random(self, *shape: int, std: float) -> torch.Tensor:
        """Return normal numbers."""
        return torch.randn(*shape, device=DEVICE, generator=self.generator) * std

    def write(
        self, file: str, plain: dict[str, torch.Tensor], linear: dict[str, tuple[int, int]] | None = None
    ) -> None:
        """Write `plain` tensors in BFloat16 and `linear` layers [rows, columns] quantised and multiplied out."""
        same = {name: tensor.bfloat16().cpu().contiguous() for name, tensor in plain.items()}
        shards: dict[str, dict[str, torch.Tensor]] = {"fp8": dict(same), "dequantised": same}
        for name, (rows, columns) in (linear or {}).items():
            codes, scale = quantised(rows, columns, columns**-0.5, self.generator)
            shards["fp8"] |= {f"{name}.weight": codes.cpu(), f"{name}.weight_scale_inv": scale.cpu()}
            shards["dequantised"][f"{name}.weight"] = dequantised(codes, scale).cpu()
        for kind, tensors in shards.items():
            save_file(tensors, self.folder / kind / file, {"format": "pt"})
            self.files[kind] |= dict.fromkeys(tensors, file)

    def write_layer(self, layer: int) -> None:
        """Write one decoder layer; every fourth has full attention."""
        at = f"{LANGUAGE}layers.{layer}."
        full = (layer + 1) % 4 == 0
        plain, linear = self.full_attention(f"{at}self_attn.") if full else self.gated_delta_net(f"{at}linear_attn.")
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain[f"{at}{norm}.weight"] = self.random(HIDDEN, std=0.1)
        linear |= {f"{at}mlp.{name}": (INTERMEDIATE, HIDDEN) for name in ("gate_proj", "up_proj")}
        linear[f"{at}mlp.down_proj"] = (HIDDEN, INTERMEDIATE)
        self.write(f"layer-{layer:02}.safetensors", plain, linear)

    def full_attention(self, at: str) -> tuple[dict[str, torch.Tensor], dict[str, tuple[int, int]]]:
        """Return the tensors of a full-attention block and the shapes of its linear layers."""
        plain = {f"{at}{name}.weight": self.random(HEAD_DIM, std=0.1) for name in ("q_norm", "k_norm")}
        kv = (KV_HEADS * HEAD_DIM, HIDDEN)
        query = {f"{at}q_proj": (2 * HEADS * HEAD_DIM, HIDDEN), f"{at}k_proj": kv, f"{at}v_proj": kv}
        return plain, query | {f"{at}o_proj": (HIDDEN, HEADS * HEAD_DIM)}

    def gated_delta_net(self, at: str) -> tuple[dict[str, torch.Tensor], dict[str, tuple[int, int]]]:
        """Return the tensors of a linear-attention block and the shapes of its linear layers."""
        channels, values = (2 * K_HEADS + V_HEADS) * LINEAR_DIM, V_HEADS * LINEAR_DIM
        plain = {
            f"{at}in_proj_a.weight": self.random(V_HEADS, HIDDEN, std=HIDDEN**-0.5),
            f"{at}in_proj_b.weight": self.random(V_HEADS, HIDDEN, std=HIDDEN**-0.5),
            f"{at}conv1d.weight": self.random(channels, 1, WIDTH, std=0.5),
            # Decays from slow to fast, as trained heads have.
            f"{at}A_log": torch.linspace(-4.0, 1.0, V_HEADS, device=DEVICE),
            f"{at}dt_bias": self.random(V_HEADS, std=1.0) - 2.0,
            f"{at}norm.weight": 1 + self.random(LINEAR_DIM, std=0.1),
        }
        self.ignored += [f"{at}in_proj_a", f"{at}in_proj_b", f"{at}conv1d"]
        queries = {f"{at}in_proj_qkv": (channels, HIDDEN), f"{at}in_proj_z": (values, HIDDEN)}
        return plain, queries | {f"{at}out_proj": (HIDDEN, values)}

    def finish(self, described: dict[str, object], vocabulary: int) -> None:
        """Write config.json, the index and a tokenizer of `vocabulary` tokens into each folder."""
        quantisation = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": self.ignored,
        }
        for kind, weights in self.files.items():
            own = described | ({"quantization_config": quantisation} if kind == "fp8" else {})
            (self.folder / kind / "config.json").write_text(json.dumps(own, indent=1))
            write_tokenizer(self.folder / kind, vocabulary)
            (self.folder / kind / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
            index = {"metadata": {"total_size": 0}, "weight_map": weights}
            (self.folder / kind / "model.safetensors.index.json").write_text(json.dumps(index))


def main() -> None:
    layers, vocabulary = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 248320
    checkpoint = Checkpoint(Path(sys.argv[1]))
    outer = {
        f"{LANGUAGE}embed_tokens.weight": checkpoint.random(vocabulary, HIDDEN, std=1.0),
        f"{LANGUAGE}norm.weight": checkpoint.random(HIDDEN, std=0.1),
        # Logits of a trained model spread over several units: KL and top-1 then mean something.
        "lm_head.weight": checkpoint.random(vocabulary, HIDDEN, std=3.0 * HIDDEN**-0.5),
    }
    checkpoint.write("outer.safetensors", outer)
    for layer in range(layers):
        checkpoint.write_layer(layer)
        print(f"layer {layer + 1} of {layers}", flush=True)
    checkpoint.finish(config(layers, vocabulary), vocabulary)


if __name__ == "__main__":
    main()
