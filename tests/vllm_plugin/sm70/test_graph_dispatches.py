"""Calls of operators under CUDA graphs: entered at capture, multiplied by replays; nothing of a warm-up counts."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

from appliance.vllm_plugin.sm70 import counters, operators
from appliance.vllm_plugin.sm70.counters import Counters

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

Batch = namedtuple("Batch", ["num_tokens", "uniform"])


class Runner:
    """As much of vLLM's runner as decides, captures and replays: a layer calls one operator, the head another."""

    mode: Any = None

    def _determine_batch_execution_and_padding(self, num_tokens: int) -> Any:
        return (self.mode, Batch(-(-num_tokens // 8) * 8, True))

    def forward(self, rows: int) -> None:
        for _ in range(3):
            operators.count("dense_w8a16", "kernel", rows)

    def _dummy_run(self, num_tokens: int, is_graph_capturing: bool = False) -> str:
        assert is_graph_capturing in (False, True)
        _, batch = self._determine_batch_execution_and_padding(num_tokens)
        self.forward(batch.num_tokens)
        return "hidden"

    def _dummy_sampler_run(self) -> str:
        operators.count("dense_w8a16", "kernel", 8)
        return "tokens"

    def profile_run(self) -> None:
        self._dummy_run(4096)
        self._dummy_sampler_run()

    def capture_model(self) -> int:
        for size in (8, 16):
            self._dummy_run(size)
            self._dummy_run(size, is_graph_capturing=True)
        return 1234

    def step(self, num_tokens: int) -> None:
        mode, batch = self._determine_batch_execution_and_padding(num_tokens)
        if mode.name == "NONE":
            self.forward(batch.num_tokens)
        operators.count("dense_w8a16", "kernel", num_tokens)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.config import CUDAGraphMode

    from appliance.vllm_plugin.sm70 import graph_dispatches

    monkeypatch.setattr(graph_dispatches, "GRAPHS", graph_dispatches.Graphs())

    class Ours(graph_dispatches.CountsDispatches, Runner):
        pass

    made = Ours()
    made.mode = CUDAGraphMode.FULL
    return made


def test_a_replay_counts_what_its_capture_entered(runner: Any) -> None:
    from vllm.config import CUDAGraphMode

    from appliance.vllm_plugin.sm70 import graph_dispatches

    def serve() -> None:
        runner.profile_run()
        assert runner.capture_model() == 1234
        for tokens in (5, 8, 11):
            runner.step(tokens)

    with operators.counted_apart() as entered:
        serve()
    graphs = graph_dispatches.GRAPHS
    assert runner.graph_bytes == 1234
    assert entered == {("dense_w8a16", "kernel"): [3, 24]}
    assert graphs.replays() == {"full_8": 2, "full_16": 1}
    # Three layers in each of three replays at padded rows, and the head in each step at its own.
    assert graphs.dispatches(entered) == {"dense_w8a16.kernel": 12, "dense_w8a16.kernel.rows": 3 * 32 + 24}
    runner.mode = CUDAGraphMode.NONE
    with operators.counted_apart() as eager:
        runner.step(4)
    assert graphs.replays() == {"full_8": 2, "full_16": 1}
    assert eager == {("dense_w8a16", "kernel"): [4, 3 * 8 + 4]}


def test_runs_before_the_first_request_count_nothing(runner: Any) -> None:
    from appliance.vllm_plugin.sm70 import graph_dispatches

    with operators.counted_apart() as entered:
        runner.profile_run()
        assert runner._dummy_run(8) == "hidden"
        assert runner._dummy_sampler_run() == "tokens"
    assert entered == {}
    assert graph_dispatches.GRAPHS.replays() == {}


def test_graphs_of_a_size_are_told_apart() -> None:
    from appliance.vllm_plugin.sm70.graph_dispatches import Graph

    labels = [Graph("full", 8, True), Graph("full", 8, False), Graph("piecewise", 8, False)]
    assert [graph.label for graph in labels] == ["full_8", "full_8_mixed", "piecewise_8"]


def test_vllms_runner_has_what_is_wrapped() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from appliance.vllm_plugin.sm70.graph_dispatches import CountsDispatches

    names = [name for name in vars(CountsDispatches) if callable(getattr(CountsDispatches, name)) and name[0] != "_"]
    wrapped = [*names, "_determine_batch_execution_and_padding", "_dummy_run", "_dummy_sampler_run"]
    assert [name for name in wrapped if not hasattr(GPUModelRunner, name)] == []


def test_a_route_tells_its_operators_by_who_served() -> None:
    served = {
        "dense_w8a16.kernel": 40,
        "dense_w8a16.kernel.rows": 1280,
        "dense_w8a16.expansion": 3,
        "dense_w8a16.expansion.rows": 24576,
        "gdn_decode.triton": 9,
        "gdn_decode.triton.rows": 18,
        "gdn_verify.kernel": 2,
        "gdn_verify.kernel.rows": 16,
        "attention_decode.kernel": 90,
        "attention_reduce.kernel": 80,
        "attention_decode_dual.kernel": 10,
        "compile_graph.replays.full_32": 7,
    }
    counts = Counters(lambda: served)
    counts.count("compile_graph.full_graph", 7)
    dense = {name: count for name, count in served.items() if name.startswith("dense")}
    assert counts.of_route("fp8_dense") == {"dispatched": 40, **dense}
    assert counts.of_route("fp8_prefill") == {"dispatched": 3, **dense}
    gdn = {name: count for name, count in served.items() if name.startswith("gdn")}
    assert counts.of_route("gdn_decode") == {"dispatched": 0, **{name: gdn[name] for name in list(gdn)[:2]}}
    verified = {name: gdn[name] for name in list(gdn)[2:]}
    assert counts.of_route("dflash2_verifier") == {"dispatched": 2, **verified}
    attended = {name: count for name, count in served.items() if name.startswith("attention")}
    assert counts.of_route("fp16_grouped_fp32") == {"dispatched": 90, "attention_decode.kernel": 90}
    # The same kernel serves; a route that is off does not claim it.
    assert counts.of_route("e4m3_grouped_fp32", serves=False) == {"dispatched": 0, "attention_decode.kernel": 90}
    assert counts.of_route("attention_backend", serves=False)["dispatched"] == 90
    assert counts.of_route("long_context") == {
        "dispatched": 80,
        **{name: attended[name] for name in list(attended)[:2]},
    }
    assert counts.of_route("dual_attention_b16")["dispatched"] == 10
    assert counts.of_route("compile_graph") == {"dispatched": 0, "full_graph": 7, "replays.full_32": 7}
    assert counts.of_route("silu_mul") == {"dispatched": 0}
    assert set(counts.snapshot()) == {*served, "compile_graph.full_graph"}


def test_what_shares_operators_is_in_the_table() -> None:
    from appliance.acceleration.routes import ROUTES

    assert set(counters.ALONE) <= set(ROUTES)
