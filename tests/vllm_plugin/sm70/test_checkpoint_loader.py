"""Whole checkpoints through vLLM's own model class and our loader: what fits loads, what does not stops in one line."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from appliance.vllm_plugin.sm70.fp8_scheme import SchemeError
from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.vllm_plugin.sm70.synthetic_checkpoint import Checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

MLP = "model.language_model.layers.0.mlp."
IGNORE = "modules_to_not_convert"


def test_what_is_not_built_is_said(load: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vllm.appliance.sm70"):
        load(synthetic.make())
    said = [record.message for record in caplog.records if "ignore list" in record.message]
    assert said == [
        "1 entries of the checkpoint's ignore list name modules that are not built: "
        "the MTP layer belongs to a drafter, which loads it by itself"
    ]


def spelt(change: Callable[[str], str]) -> Checkpoint:
    checkpoint = synthetic.make()
    checkpoint.quantization[IGNORE] = [change(entry) for entry in checkpoint.quantization[IGNORE]]
    return checkpoint


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.replace("model.language_model.", "model."),
        lambda entry: entry.replace("model.language_model.", "language_model.model."),
        lambda entry: entry.replace("model.language_model.", ""),
        lambda entry: "re:.*" + entry.replace(".", r"\."),
        lambda entry: entry.rpartition("layers.0.")[2],
    ],
    ids=["text-model", "vllm", "bare", "expression", "end-of-name"],
)
def test_ignore_lists_in_every_spelling(load: Callable[..., Any], change: Callable[[str], str]) -> None:
    layer = load(spelt(change)).language_model.model.layers[0].linear_attn
    assert type(layer.in_proj_ba.quant_method).__name__ == "UnquantizedLinearMethod"
    assert type(layer.in_proj_qkvz.quant_method).__name__ == "Sm70Fp8LinearMethod"


def entry_without_a_module(checkpoint: Checkpoint) -> None:
    checkpoint.quantization[IGNORE].append("model.language_model.layers.9.mlp.gate_proj")


def half_a_layer_ignored(checkpoint: Checkpoint) -> None:
    checkpoint.quantization[IGNORE].append(MLP + "gate_proj")


def ignored_but_fp8(checkpoint: Checkpoint) -> None:
    checkpoint.quantization[IGNORE] += [MLP + "gate_proj", MLP + "up_proj"]


def fp8_but_16_bit(checkpoint: Checkpoint) -> None:
    checkpoint.quantization[IGNORE] = [n for n in checkpoint.quantization[IGNORE] if "in_proj" not in n]


def scale_of_another_scheme(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors
    tensors[MLP + "down_proj.weight_scale"] = tensors.pop(MLP + "down_proj.weight_scale_inv")


def scale_missing(checkpoint: Checkpoint) -> None:
    del checkpoint.tensors[MLP + "up_proj.weight_scale_inv"]


def weight_missing(checkpoint: Checkpoint) -> None:
    del checkpoint.tensors["model.language_model.layers.1.self_attn.k_proj.weight"]


def norm_missing(checkpoint: Checkpoint) -> None:
    del checkpoint.tensors["model.language_model.layers.1.input_layernorm.weight"]


def fp8_norm(checkpoint: Checkpoint) -> None:
    name = "model.language_model.norm.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name].to(torch.float8_e4m3fn)


def fp8_head(checkpoint: Checkpoint) -> None:
    checkpoint.tensors["lm_head.weight"] = checkpoint.tensors["lm_head.weight"].to(torch.float8_e4m3fn)


def unknown_tensor(checkpoint: Checkpoint) -> None:
    checkpoint.tensors[MLP + "extra.weight"] = torch.zeros(3).bfloat16()


def scale_of_other_shape(checkpoint: Checkpoint) -> None:
    checkpoint.tensors[MLP + "up_proj.weight_scale_inv"] = torch.ones(3, 2).bfloat16()


def weight_of_other_shape(checkpoint: Checkpoint) -> None:
    name = MLP + "up_proj.weight"
    checkpoint.tensors[name] = checkpoint.tensors[name][:-1]


def scale_not_a_number(checkpoint: Checkpoint) -> None:
    checkpoint.tensors[MLP + "up_proj.weight_scale_inv"][1, 0] = math.nan


def weight_not_a_number(checkpoint: Checkpoint) -> None:
    checkpoint.tensors[MLP + "down_proj.weight"].view(torch.uint8)[3, 3] = 0x7F


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (entry_without_a_module, "ignore list names 'model.language_model.layers.9.mlp.gate_proj', which is no module"),
        (half_a_layer_ignored, "names layers.0.mlp.gate_proj but not layers.0.mlp.up_proj, which are one layer here"),
        (ignored_but_fp8, rf"{MLP}(gate|up)_proj.weight\w* (is float8_e4m3fn|scales a weight), but"),
        (
            fp8_but_16_bit,
            "in_proj_[ab].weight is bfloat16, but its parameter is FP8: the checkpoint's ignore list should",
        ),
        (scale_of_another_scheme, "down_proj.weight_scale is not what scales layers.0.mlp.down_proj"),
        (scale_missing, "the checkpoint has no tensor layers.0.mlp.up_proj.weight_scale_inv, which the model needs"),
        (weight_missing, "the checkpoint has no tensor layers.1.self_attn.k_proj.weight, which the model needs"),
        (norm_missing, "the checkpoint has no tensor layers.1.input_layernorm.weight, which the model needs"),
        (fp8_norm, "norm.weight is float8_e4m3fn, but its parameter is not quantised"),
        (fp8_head, "lm_head.weight is float8_e4m3fn, but its parameter is not quantised"),
        (unknown_tensor, r"mlp.extra.weight \(bfloat16\) belongs to no parameter of this model"),
        (scale_of_other_shape, r"layers.0.mlp.up_proj.weight_scale_inv is to have the shape \[4, 2\], not \[3, 2\]"),
        (
            weight_of_other_shape,
            r"layers.0.mlp.up_proj.weight is to be float8_e4m3fn\[512, 256\], not float8_e4m3fn\[511,",
        ),
        (
            scale_not_a_number,
            r"layers.0.mlp.gate_proj \+ layers.0.mlp.up_proj: scales are to be positive numbers, not nan",
        ),
        (weight_not_a_number, r"layers.0.mlp.down_proj: a weight \[\d+, 512\] has 1 elements that are not numbers"),
    ],
)
def test_a_checkpoint_that_does_not_fit_stops_the_load(
    load: Callable[..., Any], spoil: Callable[[Checkpoint], None], says: str
) -> None:
    checkpoint = synthetic.make()
    spoil(checkpoint)
    with pytest.raises(ValueError, match=says) as caught:
        load(checkpoint)
    assert "\n" not in str(caught.value)


def test_nvfp4_is_refused_before_anything_is_loaded(load: Callable[..., Any]) -> None:
    checkpoint = synthetic.make("ct-channel")
    group = checkpoint.quantization["config_groups"]["group_0"]
    group["weights"] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    with pytest.raises((SchemeError, ValueError), match=r"\(NVFP4\), which this build does not serve; it serves FP8"):
        load(checkpoint)


def test_random_weights_load(load: Callable[..., Any]) -> None:
    model = load(synthetic.make(small=True), load_format="dummy")
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if type(method).__name__ == "Sm70Fp8LinearMethod":
            out = method.apply(layer, torch.ones(2, layer.input_size_per_partition).half())
            assert bool(out.isfinite().all())


@pytest.mark.parametrize("name", ["k_proj.k_scale", "v_proj.v_scale"])
def test_a_wrong_kv_scale_stops_the_load(load: Callable[..., Any], name: str) -> None:
    checkpoint = synthetic.make()
    checkpoint.tensors["model.language_model.layers.1.self_attn." + name] = torch.tensor(math.nan)
    leaf = name.partition(".")[2]
    with pytest.raises(
        ValueError, match=rf"self_attn.attn.{leaf} is nan; a scale of the KV cache is a positive number"
    ):
        load(checkpoint)


@pytest.mark.parametrize("given", [None, (3e-5, 0.25)])
def test_the_kv_scales_are_the_checkpoints_or_one(
    config: Callable[..., Any], given: tuple[float, float] | None
) -> None:
    from vllm.config import set_current_vllm_config

    from appliance.vllm_plugin.sm70.fp8_config import Sm70KVCacheMethod

    layer = torch.nn.Module()
    layer.layer_name, layer.kv_cache_dtype, layer.calculate_kv_scales = "attn", "fp8", False
    for name in ("_q_scale", "_k_scale", "_v_scale", "_prob_scale"):
        layer.register_buffer(name, torch.ones((), dtype=torch.float32))
    vllm_config = config(synthetic.make())
    with set_current_vllm_config(vllm_config):
        method = Sm70KVCacheMethod(vllm_config.quant_config)
    method.create_weights(layer)
    if given is not None:
        layer.k_scale.data.fill_(given[0])
        layer.v_scale.data.fill_(given[1])
    method.process_weights_after_loading(layer)
    wanted = given or (1.0, 1.0)
    assert (float(layer._k_scale), float(layer._v_scale)) == pytest.approx(wanted, rel=1e-6)
    assert not hasattr(layer, "k_scale")


def test_the_tensors_that_are_wanted_are_those_of_transformers(config: Callable[..., Any]) -> None:
    """The vision tower too: a name that only one side has would stop a good checkpoint."""
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    from appliance.vllm_plugin.sm70.checkpoint_layout import canonical
    from appliance.vllm_plugin.sm70.checkpoint_loader import absent_parts, tensor_check

    vllm_config = config(synthetic.make(), images=1)
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(torch.float16):
        model = initialize_model(vllm_config=vllm_config)
    absent = absent_parts(model)
    assert set(absent.reasons) == {"mtp"}
    check = tensor_check(model, vllm_config.quant_config.packed_modules_mapping, absent)
    with torch.device("meta"):
        theirs = Qwen3_5ForConditionalGeneration(Qwen3_5Config.from_pretrained(vllm_config.model_config.model))
    wanted = {canonical(name) for name in theirs.state_dict()}
    assert {name for name in check.expected if not name.endswith("weight_scale_inv")} == wanted
    assert {f"{name}.weight_scale_inv" for name in check.quantised} == check.expected - wanted
    assert set(check.quantised) == {name for name in synthetic.LINEARS if name not in synthetic.SMALL}


def test_a_rank_whose_inputs_are_no_whole_blocks_is_refused(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.linear import RowParallelLinear

    vllm_config = config(synthetic.make())
    monkeypatch.setattr(parallel_state, "_TP", SimpleNamespace(rank_in_group=0, world_size=8))
    says = r"down_proj has 64 inputs on a rank, no multiple of 128, .*: serve it with fewer ranks"
    with set_current_vllm_config(vllm_config), pytest.raises(ValueError, match=says):
        RowParallelLinear(512, 256, quant_config=vllm_config.quant_config, prefix="layers.0.mlp.down_proj")


def test_a_drafter_is_not_held_against_the_whole_checkpoint(config: Callable[..., Any]) -> None:
    from vllm.config import set_current_vllm_config

    from appliance.vllm_plugin.sm70.checkpoint_loader import check_of

    vllm_config = config(synthetic.make())
    with set_current_vllm_config(vllm_config):
        assert check_of(torch.nn.Module(), object()) is None
