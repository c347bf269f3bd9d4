"""The gated delta net's operators as torch sees them, and beside the transformers library's own formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sm70_kernels.gdn.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.gdn import recurrence
from sm70_kernels.torch_library import has_kernel
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, integers, relative

NAMES = ("gdn_decode", "gdn_prefill", "gdn_verify", "gdn_verify_log")


def arguments_of(name: str) -> dict[str, Any]:
    layer = GdnLayer(Sizes(rows=3))
    mixed_qkv, b, a = layer.inputs(4)
    where = {
        "gdn_decode": {"state_indices": integers(2, -1, 0, 5)},
        "gdn_prefill": {
            "query_start_loc": integers(0, 3, 4),
            "state_indices": integers(2, 0),
            "has_initial_state": torch.tensor([True, False]),
        },
        "gdn_verify": {
            "query_start_loc": integers(0, 3, 4),
            "state_indices": torch.tensor([[1, 2, 3], [0, 5, 4]], dtype=torch.int32),
            "num_accepted_tokens": integers(2, 1),
        },
        "gdn_verify_log": {
            "log": layer.log().zero_(),
            "query_start_loc": integers(0, 3, 4),
            "state_indices": integers(1, 0),
            "num_accepted_tokens": integers(2, 1),
            "num_replayed_rows": integers(2, 0),
        },
    }[name]
    return {
        "mixed_qkv": mixed_qkv,
        "b": b,
        "a": a,
        "conv_state": layer.conv_state,
        "conv_weight": layer.conv_weight,
        "ssm_state": layer.ssm_state,
        "A_log": layer.a_log,
        "dt_bias": layer.dt_bias,
        **where,
        "out": layer.out(4),
        "key_heads": layer.sizes.key_heads,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_legal_for_torch_compile(name: str) -> None:
    function = getattr(torch.ops.sm70, name)
    torch.library.opcheck(function.default, (), arguments_of(name))

    def around(**arguments: Any) -> torch.Tensor:
        function(**arguments | {"b": arguments["b"] + 1})
        return arguments["out"] * 2

    compiled = torch.compile(around, fullgraph=True, backend="aot_eager", dynamic=True)
    eager, traced = arguments_of(name), arguments_of(name)
    assert torch.equal(around(**eager), compiled(**traced))
    for changed in ("out", "conv_state", "ssm_state", *(("log",) if "log" in eager else ())):
        assert torch.equal(eager[changed], traced[changed])


def test_which_operators_have_a_kernel() -> None:
    assert {name for name in NAMES if has_kernel(name)} == {"gdn_decode", "gdn_prefill", "gdn_verify_log"}
    assert not has_kernel("no_such_operator")


REFUSED = {
    "mixed_qkv": (
        torch.zeros(4, 113),
        "sm70.NAME wants a floating-point mixed_qkv [4, 112], not float32[4, 113] on cpu",
    ),
    "b": (torch.zeros(4, 5), "sm70.NAME wants a floating-point b [4, 6], not float32[4, 5] on cpu"),
    "a": (torch.zeros(4, 6).int(), "sm70.NAME wants a floating-point a [4, 6], not int32[4, 6] on cpu"),
    "conv_state": (
        torch.zeros(7, 112, 1),
        "sm70.NAME wants a conv_state [7, 112, COLUMNS or more], not float32[7, 112, 1] on cpu",
    ),
    "conv_weight": (
        torch.zeros(112, 1),
        "sm70.NAME wants a conv_weight [112, width], width at least 2, not float32[112, 1] on cpu",
    ),
    "ssm_state": (
        torch.zeros(7, 6, 8),
        "sm70.NAME wants a floating-point ssm_state [slots, Hv, Dv, Dk], not float32[7, 6, 8] on cpu",
    ),
    "A_log": (torch.zeros(1), "sm70.NAME wants a floating-point A_log [6], not float32[1] on cpu"),
    "dt_bias": (torch.zeros(6, 1), "sm70.NAME wants a floating-point dt_bias [6], not float32[6, 1] on cpu"),
    "out": (torch.zeros(4, 48), "sm70.NAME wants a floating-point out [4, 6, 8], not float32[4, 48] on cpu"),
    "key_heads": (4, "sm70.NAME wants key_heads that divide 6 value heads, not 4"),
}


@pytest.mark.parametrize("argument", REFUSED)
@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_refused(name: str, argument: str) -> None:
    wrong, message = REFUSED[argument]
    with pytest.raises(ValueError, match="wants") as refused:
        getattr(torch.ops.sm70, name)(**arguments_of(name) | {argument: wrong})
    columns = "5" if name.startswith("gdn_verify") else "3"
    assert str(refused.value) == message.replace("NAME", name).replace("COLUMNS", columns)


@pytest.mark.parametrize(
    ("name", "argument", "wrong", "wanted"),
    [
        ("gdn_decode", "state_indices", torch.zeros(3).int(), "state_indices int32[4], not int32[3]"),
        ("gdn_prefill", "state_indices", torch.zeros(2), "state_indices int32[2], not float32[2]"),
        ("gdn_prefill", "query_start_loc", torch.zeros(2).int(), "query_start_loc int32[3], not int32[2]"),
        ("gdn_prefill", "has_initial_state", torch.zeros(2).int(), "has_initial_state bool[2], not int32[2]"),
        ("gdn_verify", "state_indices", torch.zeros(2).int(), "state_indices int32[sequences, rows], not int32[2]"),
        ("gdn_verify", "query_start_loc", torch.zeros(3), "query_start_loc int32[3], not float32[3]"),
        ("gdn_verify", "num_accepted_tokens", torch.zeros(3).int(), "num_accepted_tokens int32[2], not int32[3]"),
        ("gdn_verify_log", "state_indices", torch.zeros(2), "state_indices int32[2], not float32[2]"),
        ("gdn_verify_log", "num_replayed_rows", torch.zeros(3).int(), "num_replayed_rows int32[2], not int32[3]"),
        ("gdn_verify_log", "log", torch.zeros(7, 3, 85), "a log float32[7, rows, 86], not float32[7, 3, 85]"),
        ("gdn_verify_log", "log", torch.zeros(7, 86), "a log [slots, rows, floats of a row], not float32[7, 86]"),
    ],
)
def test_places_that_do_not_fit_are_refused(name: str, argument: str, wrong: torch.Tensor, wanted: str) -> None:
    with pytest.raises(ValueError, match="wants") as refused:
        getattr(torch.ops.sm70, name)(**arguments_of(name) | {argument: wrong})
    assert str(refused.value) == f"sm70.{name} wants {wanted} on cpu"


def test_the_formulas_are_those_of_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    layer, tokens = GdnLayer(Sizes(dtype=torch.float32)), 150
    sizes = layer.sizes
    mixed, b, a = layer.inputs(tokens)
    g, beta = recurrence.gates(a, b, layer.a_log, layer.dt_bias, torch.float32)
    assert relative(beta, b.sigmoid()) < 1e-6
    softplus = torch.nn.functional.softplus(a + layer.dt_bias)
    assert relative(g, -layer.a_log.exp() * softplus) < 1e-6
    window = torch.cat((torch.zeros(sizes.width - 1, sizes.channels), mixed))
    weight = layer.conv_weight[:, None]
    convolved = torch.nn.functional.conv1d(window.T[None], weight, groups=sizes.channels)[0].T
    assert relative(recurrence.convolved(window, layer.conv_weight), torch.nn.functional.silu(convolved)) < 1e-6

    keys = sizes.key_heads * sizes.key_head
    q, k, v = mixed.split([keys, keys, mixed.shape[1] - 2 * keys], dim=1)
    group = sizes.value_heads // sizes.key_heads
    q, k = (x.view(1, tokens, sizes.key_heads, -1).repeat_interleave(group, dim=2) for x in (q, k))
    v = v.reshape(1, tokens, sizes.value_heads, -1)
    state = layer.ssm_state[1]
    seen_state, seen = recurrence.chunked(state, recurrence.heads_of(mixed, g, beta, sizes.key_heads, sizes.key_head))
    for function in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        wanted, wanted_state = function(
            *(q, k, v, g[None], beta[None]),
            initial_state=state.mT[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert relative(seen, wanted[0]) < 1e-5
        assert relative(seen_state, wanted_state[0].mT) < 1e-5
