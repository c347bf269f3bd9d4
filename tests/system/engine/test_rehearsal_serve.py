"""`appliance serve` rehearsed for V100s on the CPU engine: the tiny model through the plugin, by the references.

The tests build on each other: a start takes most of a minute.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import rundir
from appliance.acceleration.routes import ROUTES
from appliance.profiles import catalogue
from appliance.rundir.step_line import StepLine
from tests.gpu.engine import make_model
from tests.models_made import tiny_qwen
from tests.system.engine.serve_harness import Server
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PROFILE = catalogue.read(Path(tiny_qwen.__file__).with_suffix(".yaml"))
REHEARSAL = "rehearsal: vllm_platform sm70-reference computes every operator by its reference on this machine's CPU"
PATH = "/v1/sm70/acceleration"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model and what a restarted container finds again: the state with its compile cache."""
    return tmp_path_factory.mktemp("rehearsal")


def start(folder: Path, log: str) -> Server:
    return Server(
        folder / "model",
        folder / "state",
        folder / log,
        "--vllm-platform=sm70-reference",
        profile=str(Path(tiny_qwen.__file__).with_suffix(".yaml")),
        served=PROFILE.served_model_name,
    )


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    tiny_qwen.make(folder / "model")
    started = start(folder, "first.log")
    try:
        yield started
    finally:
        started.stop()


def test_the_profiles_have_the_shapes_of_the_models_that_they_are_for() -> None:
    described = make_model.config(8, 32768)["text_config"]
    assert isinstance(described, dict)
    eight = catalogue.read(Path(make_model.__file__).with_name("eight_layers.yaml")).memory.geometry
    kinds = list(described["layer_types"])
    assert (eight.layers_full_attention, eight.layers_linear_attention) == (
        kinds.count("full_attention"),
        kinds.count("linear_attention"),
    )
    assert (eight.kv_heads, eight.head_dim) == (described["num_key_value_heads"], described["head_dim"])
    assert eight.linear_value_heads == described["linear_num_value_heads"]
    assert eight.linear_key_heads == described["linear_num_key_heads"]
    assert eight.linear_head_dim == described["linear_value_head_dim"]
    tiny, shape = PROFILE.memory.geometry, tiny_qwen.Shape()
    assert tiny.layers_full_attention == shape.layer_types.count("full_attention")
    assert tiny.layers_linear_attention == shape.layer_types.count("linear_attention")
    assert (tiny.kv_heads, tiny.head_dim) == (shape.kv_heads, shape.head)
    assert (tiny.linear_value_heads, tiny.linear_key_heads) == (shape.value_heads, shape.key_heads)
    assert (tiny.linear_head_dim, tiny.linear_conv_width) == (shape.gdn_head, shape.width)


def tokens(server: Server) -> list[int]:
    """Greedy tokens after a prompt that ends within a chunk."""
    wish = {"model": server.served, "prompt": list(range(20, 120)), "max_tokens": 8, "temperature": 0}
    answer = server.http.post("/v1/completions", json={**wish, "ignore_eos": True, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    assert len(found) == 8
    return found


def of_sidecar(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.sidecar_port}{path}", timeout=5, trust_env=False)


def test_a_start_goes_through_its_phases_and_says_that_it_is_a_rehearsal(server: Server) -> None:
    server.wait_ready()
    until(lambda: "try it: " in server.log)
    assert REHEARSAL in server.log
    for phase in ("loading", "warming"):
        assert f"appliance  | {phase} " in server.log
    plan = rundir.read(server.run_dir, rundir.PLAN) or {}
    assert (plan["profile"], plan["engine"], plan["gpus"]) == ("tiny_qwen", "portable", [])
    assert plan["settings"]["vllm_platform"] == {"value": "sm70-reference", "source": "command line"}
    assert plan["rehearsal"].startswith(REHEARSAL)
    assert REHEARSAL in of_sidecar(server, "/status").text.replace("&#39;", "'")
    assert (server.cache["state"], server.cache["reason"]) == ("cold", "new")


def test_every_route_is_told_with_the_reference_that_serves_it(server: Server) -> None:
    server.wait_ready()
    assert httpx.get(f"{server.http.base_url}{PATH}", trust_env=False).status_code == 401
    told = server.http.get(PATH).json()
    assert set(told["routes"]) == set(ROUTES)
    assert (told["ranks"], told["missing_ranks"]) == ([0], [])
    assert told["rehearsal"].startswith(REHEARSAL)
    assert told["missing"].keys() == set(PROFILE.expected_acceleration)
    for name in PROFILE.expected_acceleration:
        route = told["routes"][name]
        assert (route["state"], route["details"]["served_by"]) == ("disabled", "reference"), name
        assert route["reason"].startswith("operator_missing:"), name
    through = of_sidecar(server, PATH).json()
    assert (through["source"], through["rehearsal"]) == ("engine", told["rehearsal"])


def test_no_route_keeps_it_from_being_ready_and_metrics_tell_them(server: Server) -> None:
    server.wait_ready()
    status, health = server.health("ready")
    assert status == 200
    assert health["details"]["routes_off"].keys() == set(PROFILE.expected_acceleration)
    metrics = of_sidecar(server, "/metrics").text
    for name in PROFILE.expected_acceleration:
        assert f'route="{name}"' in metrics


def test_its_steps_are_counted_and_none_was_a_graph_replay(server: Server) -> None:
    server.wait_ready()
    # A rank writes its counts every few seconds: those of the first tokens may not be there yet.
    until(lambda: "compile_graph.eager" in counters(server))
    before = counters(server)
    tokens(server)
    # A prompt of 100 tokens is one step, and each further token another.
    until(lambda: counters(server)["compile_graph.eager"] >= before["compile_graph.eager"] + 8)
    graphs = {name for name in counters(server) if name.startswith("compile_graph.")} - {"compile_graph.eager"}
    assert graphs == set()
    steps = [StepLine.from_json(json.loads(line)) for line in (server.run_dir / rundir.STEPS).read_text().splitlines()]
    assert {step.graph for step in steps} <= {None, "NONE"}


def counters(server: Server) -> dict[str, Any]:
    record = rundir.read(server.run_dir / rundir.RANKS, "0.json") or {}
    return dict(record["counters"])


def test_a_killed_core_comes_back_and_says_the_same(server: Server) -> None:
    server.wait_ready()
    said = tokens(server)
    core = server.pid("core")
    os.kill(core, signal.SIGKILL)
    until(lambda: server.health("ready")[0] == 503)
    server.wait_ready(restarts=1)
    assert server.pid("core") != core
    assert tokens(server) == said


def test_sigterm_ends_it_and_the_next_start_is_warm_and_says_the_same(server: Server, folder: Path) -> None:
    server.wait_ready(restarts=1)
    said, key = tokens(server), server.cache["key"]
    server.look()
    server.process.terminate()
    assert server.process.wait(timeout=60) == 0
    assert server.left() == []
    assert server.log.rstrip().endswith("ended with status 0: stopped as asked")
    second = start(folder, "second.log")
    try:
        second.wait_ready()
        assert (second.cache["state"], second.cache["key"], second.cache["tokens_match"]) == ("warm", key, True)
        assert tokens(second) == said
    finally:
        second.stop()
