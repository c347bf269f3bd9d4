"""A kernel that fails its self-test serves nobody: its layers fall back, the start goes on, the report says why.

The CPU stands for the card: its operators get a kernel that gives wrong numbers, beside the reference.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from appliance import rundir
from appliance.vllm_plugin.sm70 import admission, operators, providers, rank_report, route_setup, routes, tactics
from appliance.vllm_plugin.sm70.routes import Facts
from appliance.vllm_plugin.sm70.selftest import SelfTest
from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic
from tests.vllm_plugin.sm70.test_linear_fp8 import activations, layers, relative_error
from tests.vllm_plugin.sm70.test_route_setup import Alone
from tests.vllm_plugin.sm70.test_routes import C32, EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

DENSE = ("dense_w8a16", "dense_w8a16_silu_mul")
OTHERS = {
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "gated_rms_norm": "norm",
    "silu_and_mul": "activation",
    "sigmoid_gate": "activation",
}


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose operators have kernels, all of them wrong."""
    from sm70_kernels import dispatch

    library = torch.library.Library("sm70", "IMPL")
    folders = dict.fromkeys(DENSE, "dense") | OTHERS
    for name, folder in folders.items():
        operators.operator(name)
        reference = getattr(importlib.import_module(f"sm70_kernels.{folder}.reference"), name)

        def wrong(*arguments: Any, reference: Callable[..., Any] = reference) -> Any:
            result = reference(*arguments)
            return result * 0 if torch.is_tensor(result) else tuple(each * 0 for each in result)

        function = dispatch.on_cuda(name, wrong, reference, counts_itself=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, function, "CPU", allow_override=True)
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(admission, "view_of", lambda _: C32)
    monkeypatch.setattr(rank_report, "_NOTES", {})
    # Nothing is timed: there is no card.
    monkeypatch.setattr(tactics, "settle", lambda *_: tactics.Outcome(None, "table", "no card"))
    yield
    library._destroy()
    routes.adopt({})
    operators.use_references((), expand=True)
    providers.forget()


def settle(monkeypatch: pytest.MonkeyPatch, *failed: str, lacking: tuple[str, ...] = ()) -> None:
    """Settle the routes of a card on which these self-tests fail and these kernels lack."""
    tests = {name: SelfTest(name, False, f"selftest_failed:{name}", "case 1: other bits") for name in failed}
    kernels = EVERY - set(lacking)
    facts = Facts(active=True, capability=(7, 0), kernels=kernels, operators=EVERY, selftests=tests)
    monkeypatch.setattr(route_setup, "of_this_process", lambda *_: facts)
    settled = route_setup.settle(None, 0, Alone())
    assert settled.reporter is not None
    settled.reporter.close()


def errors(checkpoint: synthetic.Checkpoint, model: torch.nn.Module) -> dict[str, float]:
    """The relative error of every FP8 layer and of the head."""
    found = {}
    for name, layer in [*layers(model).items(), ("lm_head", model.get_submodule("language_model.lm_head"))]:
        if not type(layer.quant_method).__name__.startswith("Sm70Fp8"):
            continue
        matrix = checkpoint.matrices[name] if name == "lm_head" else synthetic.matrix_of(checkpoint, name, 0, 1)
        x = activations(matrix.shape[1])
        wanted = x.double() @ matrix.T
        if name.endswith("gate_up_proj"):
            gate, up = wanted.chunk(2, dim=-1)
            wanted = torch.nn.functional.silu(gate) * up
        found[name] = relative_error(layer.quant_method.apply(layer, x)[:, : wanted.shape[1]], wanted)
    return found


@pytest.mark.usefixtures("card")
def test_a_failed_kernel_of_dense_layers_leaves_layers_and_head_to_the_reference(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settle(monkeypatch, *DENSE)
    checkpoint = synthetic.make("ct-channel", small=True)
    found = errors(checkpoint, load(checkpoint))
    assert "lm_head" in found
    assert max(found.values()) < 1e-3, found
    report = rundir.read(tmp_path / "run" / rundir.RANKS, "0.json")
    assert report is not None
    route = report["routes"]["fp8_dense"]
    assert (route["state"], route["reason"]) == ("disabled", "selftest_failed:dense_w8a16")
    assert route["details"]["served_by"] == "reference"
    assert report["routes"]["fp8_prefill"]["reason"] == "selftest_failed:dense_w8a16"


@pytest.mark.usefixtures("card")
def test_a_kernel_that_passes_is_the_one_that_serves(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settle(monkeypatch, "dense_w8a16_silu_mul")
    checkpoint = synthetic.make("ct-channel")
    found = errors(checkpoint, load(checkpoint))
    # One of the two operators failed: it alone falls back.
    right = {name for name, error in found.items() if error < 1e-3}
    assert right == {name for name in found if name.endswith("gate_up_proj")}


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("failed", "lacking"),
    [
        (("add_rms_norm", "gated_rms_norm", "sigmoid_gate"), ()),
        ((), ("rms_norm", "gated_rms_norm", "silu_and_mul", "qk_norm_mrope")),
    ],
)
def test_norms_and_activations_are_left_to_vllm(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, failed: tuple[str, ...], lacking: tuple[str, ...]
) -> None:
    settle(monkeypatch, *failed, lacking=lacking)
    model = load(synthetic.make())
    first, second = model.language_model.model.layers
    norms = (first.input_layernorm, first.post_attention_layernorm, first.linear_attn.norm, first.mlp.act_fn)
    for layer in norms:
        assert layer._forward_method == layer.forward_native, type(layer).__name__
    assert not first.mlp.act_fn.fused
    assert type(second.self_attn).__name__ == "Qwen3NextAttention"


@pytest.mark.usefixtures("card")
def test_what_serves_is_part_of_the_compile_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Config:
        additional_config: dict[str, Any]

    config = Config()
    config.additional_config = {"sm70": {}}
    facts = Facts(active=True, capability=(7, 0), kernels=EVERY - {"rms_norm"}, operators=EVERY)
    monkeypatch.setattr(route_setup, "of_this_process", lambda *_: facts)
    settled = route_setup.settle(config, 0, Alone())
    assert settled.reporter is not None
    settled.reporter.close()
    off = config.additional_config["sm70_operators_off"]
    assert off["rms_norm"] == "operator_missing:rms_norm"
    assert "add_rms_norm" not in off
