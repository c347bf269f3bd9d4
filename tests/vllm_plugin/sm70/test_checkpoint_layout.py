"""Ignore lists in every spelling that checkpoints use, and tensors held against them. Pure."""

from __future__ import annotations

import pytest

from appliance.vllm_plugin.sm70.checkpoint_layout import (
    Absent,
    LayoutError,
    TensorCheck,
    canonical,
    ignored,
    names_module,
    shards_of,
    unmatched,
)

PACKED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
    "in_proj_qkvz": ["in_proj_qkv", "in_proj_z"],
    "in_proj_ba": ["in_proj_b", "in_proj_a"],
    "qkv": ["qkv"],
}
BA = "language_model.model.layers.0.linear_attn.in_proj_ba"
NOTHING = Absent({})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.language_model.layers.0.mlp.gate_proj", "layers.0.mlp.gate_proj"),
        ("language_model.model.layers.0.mlp.gate_proj", "layers.0.mlp.gate_proj"),
        ("model.layers.0.mlp.gate_proj", "layers.0.mlp.gate_proj"),
        ("layers.0.mlp.gate_proj", "layers.0.mlp.gate_proj"),
        ("lm_head", "lm_head"),
        ("language_model.lm_head", "lm_head"),
        ("model.visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv"),
        ("visual", "visual"),
        ("mtp.fc", "mtp.fc"),
        ("model.language_model", "language_model"),
    ],
)
def test_one_form_for_every_spelling(name: str, wanted: str) -> None:
    assert canonical(name) == wanted


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("lm_head", "lm_head"),
        ("model.visual", "visual.blocks.0.attn.qkv"),
        ("visual", "visual.merger.linear_fc1"),
        ("model.language_model.layers.0.linear_attn", "layers.0.linear_attn.in_proj_a"),
        ("model.layers.0.linear_attn.in_proj_a", "layers.0.linear_attn.in_proj_a"),
        ("in_proj_a", "layers.7.linear_attn.in_proj_a"),
        ("linear_attn.in_proj_a", "layers.7.linear_attn.in_proj_a"),
        ("re:.*lm_head", "lm_head"),
        ("re:.*linear_attn.in_proj_[ab]$", "layers.7.linear_attn.in_proj_b"),
        (r"re:model\.visual\..*", "visual.blocks.0.attn.qkv"),
        (r"re:^visual\..*", "visual.blocks.0.attn.qkv"),
        (r"re:model\.language_model\.layers\.\d+\.linear_attn.*", "layers.12.linear_attn.in_proj_a"),
        (r"re:^language_model\.model\.layers\.3\.", "layers.3.mlp.gate_proj"),
    ],
)
def test_an_entry_names_a_module(entry: str, name: str) -> None:
    assert names_module(entry, name)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("layers.0.self_attn.q_proj", "mtp.layers.0.self_attn.q_proj"),
        ("model.layers.1", "layers.10.mlp.gate_proj"),
        ("norm", "layers.0.linear_attn.norm"),
        ("proj_a", "layers.0.linear_attn.in_proj_a"),
        ("re:lm_head", "mtp.lm_head"),
        ("re:layers", "visual.layers"),
    ],
)
def test_an_entry_names_no_other_module(entry: str, name: str) -> None:
    assert not names_module(entry, name)


def test_a_fused_layer_has_the_names_of_its_shards() -> None:
    parent = "layers.0.linear_attn"
    assert shards_of(BA, PACKED) == [f"{parent}.in_proj_b", f"{parent}.in_proj_a"]
    assert shards_of("language_model.lm_head", PACKED) == ["lm_head"]
    assert shards_of("visual.blocks.0.attn.qkv", PACKED) == ["visual.blocks.0.attn.qkv"]


@pytest.mark.parametrize(
    "entries",
    [
        ["model.language_model.layers.0.linear_attn.in_proj_a", "model.language_model.layers.0.linear_attn.in_proj_b"],
        ["in_proj_a", "in_proj_b"],
        ["re:.*in_proj_[ab]"],
        ["model.language_model.layers.0.linear_attn.in_proj_ba"],
        ["model.language_model.layers.0"],
    ],
)
def test_a_fused_layer_is_ignored_with_all_its_shards(entries: list[str]) -> None:
    assert ignored(BA, entries, PACKED)
    assert not ignored("language_model.model.layers.1.mlp.gate_up_proj", entries, PACKED)


def test_half_a_fused_layer_stops_the_load() -> None:
    with pytest.raises(
        LayoutError, match=r"names layers.0.linear_attn.in_proj_a but not layers.0.linear_attn.in_proj_b"
    ):
        ignored(BA, ["model.language_model.layers.0.linear_attn.in_proj_a"], PACKED)


MODULES = ["lm_head", "layers.0", "layers.0.mlp.gate_proj"]
ABSENT = Absent({"mtp": "a drafter's", "visual": "text only"})


@pytest.mark.parametrize(
    "entry", ["mtp", "mtp.layers.0.mlp.gate_proj", "model.visual", "re:.*mtp.*", r"re:model\.visual\..*"]
)
def test_an_entry_for_what_is_not_built_is_excused_with_its_reason(entry: str) -> None:
    assert unmatched(["lm_head", entry], MODULES, ABSENT) == {
        entry: ABSENT.reasons["mtp" if "mtp" in entry else "visual"]
    }
    with pytest.raises(LayoutError, match="which is no module of this model"):
        unmatched([entry], MODULES, NOTHING)


@pytest.mark.parametrize("entry", ["lm_heads", "model.layers.64.mlp.gate_proj", "re:.*experts.*", "model.head"])
def test_an_entry_that_names_nothing_stops_the_load(entry: str) -> None:
    with pytest.raises(LayoutError) as caught:
        unmatched(["lm_head", entry], MODULES, ABSENT)
    assert f"names {entry!r}, which is no module" in str(caught.value)
    assert "\n" not in str(caught.value)


def check() -> TensorCheck:
    expected = ("a.weight", "a.weight_scale_inv", "b.weight", "norm.weight", "lm_head.weight")
    return TensorCheck({"a": "weight_scale_inv"}, frozenset(expected), ABSENT, frozenset({"c.attn.k_scale"}))


def test_tensors_that_fit_pass() -> None:
    seen = check()
    seen.see("model.language_model.a.weight", "float8_e4m3fn")
    seen.see("model.language_model.a.weight_scale_inv", "bfloat16")
    for name in ("model.language_model.b.weight", "model.language_model.norm.weight", "lm_head.weight"):
        seen.see(name, "bfloat16")
    seen.see("c.self_attn.k_proj.k_scale", "float32")
    seen.see("mtp.fc.weight", "float8_e4m3fn")
    seen.see("model.visual.blocks.0.attn.qkv.weight", "bfloat16")
    seen.finish()


@pytest.mark.parametrize(
    ("name", "dtype", "says"),
    [
        (
            "model.b.weight",
            "float8_e4m3fn",
            "the tensor model.b.weight is float8_e4m3fn, but its parameter is not quantised",
        ),
        ("norm.weight", "float8_e4m3fn", "norm.weight is float8_e4m3fn, but its parameter is not quantised"),
        ("b.weight", "uint8", "b.weight is uint8, but its parameter is not quantised"),
        (
            "a.weight",
            "bfloat16",
            "a.weight is bfloat16, but its parameter is FP8: the checkpoint's ignore list should name a",
        ),
        ("b.weight_scale_inv", "bfloat16", "b.weight_scale_inv scales a weight, but b is not quantised"),
        ("lm_head.weight_scale", "bfloat16", "lm_head.weight_scale scales a weight, but lm_head is not quantised"),
        ("a.weight_scale", "bfloat16", "a.weight_scale is not what scales a: its scheme wants a.weight_scale_inv"),
        ("a.input_scale", "float32", "a.input_scale is not what scales a"),
        ("a.weight_packed", "uint8", "a.weight_packed is not what scales a"),
        ("d.weight", "bfloat16", r"d.weight \(bfloat16\) belongs to no parameter of this model"),
    ],
)
def test_a_tensor_that_does_not_fit_stops_the_load(name: str, dtype: str, says: str) -> None:
    with pytest.raises(LayoutError, match=says) as caught:
        check().see(name, dtype)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_is_missing_stops_the_load() -> None:
    seen = check()
    seen.see("a.weight", "float8_e4m3fn")
    with pytest.raises(
        LayoutError, match=r"the checkpoint has no tensor a.weight_scale_inv and 3 more, which the model"
    ):
        seen.finish()
