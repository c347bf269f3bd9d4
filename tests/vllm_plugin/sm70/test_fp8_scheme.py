"""What is read of a checkpoint's quantisation config, and what is refused in one line. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.vllm_plugin.sm70.checkpoint_layout import LayoutError
from appliance.vllm_plugin.sm70.fp8_scheme import SUPPORTED, Scheme, SchemeError, read

BLOCK = Scheme("block", "weight_scale_inv")
PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}


def group(targets: tuple[str, ...] = ("Linear",), activations: Any = None, **weights: Any) -> dict[str, Any]:
    full = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"} | weights
    return {"targets": list(targets), "weights": full, "input_activations": activations}


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{number}": each for number, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named} | more


def test_native_blocks() -> None:
    layout = read({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.visual"]})
    assert layout.scheme("model.layers.0.mlp.down_proj", {}) == BLOCK
    assert layout.scheme("visual.blocks.0.mlp.linear_fc1", {}) is None
    # transformers leaves the head alone and need not say so.
    assert layout.scheme("lm_head", {}, head=True) is None


def test_native_channels_under_either_name_of_the_list() -> None:
    layout = read({"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]})
    assert layout.scheme("model.layers.0.mlp.down_proj", {}) == Scheme("channel", "weight_scale")


def test_compressed_tensors_quantises_the_head_unless_it_is_ignored() -> None:
    assert read(compressed(group())).scheme("lm_head", {}, head=True) == Scheme("channel", "weight_scale")
    assert read(compressed(group(), ignore=["lm_head"])).scheme("lm_head", {}, head=True) is None


def test_compressed_tensors_by_target() -> None:
    blocks = group(("re:.*down_proj",), strategy="block", block_structure=[128, 128])
    layout = read(compressed(blocks, group(("re:.*[qkv]_proj$",)), kv_cache_scheme={"num_bits": 8}))
    assert layout.scheme("language_model.model.layers.3.mlp.down_proj", {}) == Scheme("block", "weight_scale")
    assert layout.scheme("language_model.model.layers.3.self_attn.qkv_proj", PACKED) == Scheme(
        "channel", "weight_scale"
    )
    assert layout.scheme("language_model.model.layers.3.self_attn.o_proj", PACKED) is None
    assert layout.kv_cache


def test_shards_of_one_layer_with_different_schemes_are_refused() -> None:
    blocks = group(("re:.*q_proj",), strategy="block", block_structure=[128, 128])
    layout = read(compressed(blocks, group(("re:.*[kv]_proj$",))))
    with pytest.raises(
        SchemeError, match=r"the shards of model.layers.3.self_attn.qkv_proj are quantised in different"
    ):
        layout.scheme("model.layers.3.self_attn.qkv_proj", PACKED)
    partly = read(compressed(group(("re:.*[kv]_proj$",))))
    with pytest.raises(SchemeError, match="in different ways"):
        partly.scheme("model.layers.3.self_attn.qkv_proj", PACKED)
    with pytest.raises(LayoutError):
        read(compressed(group(), ignore=["re:.*q_proj"])).scheme("model.layers.3.self_attn.qkv_proj", PACKED)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "activation_scheme 'static'"),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, r"weight_block_size \[64, 128\]"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "modelopt"}, "quant_method 'modelopt'"),
        (compressed(), "no config_groups"),
        (
            compressed(group(num_bits=4, strategy="tensor_group", group_size=16)),
            r"'group_0' with 4-bit float tensor_group weights \(NVFP4\)",
        ),
        (
            compressed(group(), group(num_bits=4, type="int", strategy="group")),
            "'group_1' with 4-bit int group weights",
        ),
        (compressed(group(strategy="tensor")), "with tensor scales"),
        (compressed(group(strategy="block", block_structure=[64, 64])), r"with block \[64, 64\] scales"),
        (compressed(group(activations={"dynamic": False})), "with static input scales"),
        (compressed(group(), sparsity_config={"format": "dense"}), "a sparsity_config"),
        (compressed(group(), transform_config={"x": 1}), "a transform_config"),
    ],
)
def test_what_is_not_served_is_refused_with_what_is(config: dict[str, Any], says: str) -> None:
    with pytest.raises(SchemeError, match=says) as caught:
        read(config)
    assert SUPPORTED in str(caught.value)
    assert "\n" not in str(caught.value)
