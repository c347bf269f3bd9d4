"""The tiny model of Qwen3.8-27B's architecture through the SM70 plugin on the real CPU engine, by the references."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance import rundir
from appliance.acceleration.routes import ROUTES
from tests.models_made import tiny_qwen
from tests.system.engine.engine_harness import Engine, environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[3]
POISONED = 9
SHARED = [(7 * i) % 250 for i in range(230)]
RUNNING = {"prompt": [11, 12, 13, 14, 15, 16], "tokens": 24}


def prompt(length: int, first: int = 20) -> list[int]:
    return [(first + 13 * i) % 250 for i in range(length)]


def asked(length: int, after: int = 0, tokens: int = 3) -> dict[str, Any]:
    return {"prompt": prompt(length), "tokens": tokens, "after": after}


LENGTHS = range(1, 21)
TAILS = [32 + tail for tail in range(1, 10)]
CACHED = [{"prompt": [*SHARED, last], "tokens": 3} for last in (1, 2)]
JOBS: dict[str, dict[str, Any]] = {
    "alone": {"rounds": [[asked(length)] for length in (*LENGTHS, *TAILS)] + [[RUNNING]] + [[one] for one in CACHED]},
    "beside": {
        "rounds": [[RUNNING, *(asked(length, after=1 + number) for number, length in enumerate((*LENGTHS, *TAILS)))]]
    },
    "chunked": {
        "engine": {"max_num_batched_tokens": 32},
        "rounds": [[asked(length)] for length in TAILS] + [[RUNNING, *(asked(length, after=2) for length in TAILS)]],
    },
    "prefix cache": {"engine": {"enable_prefix_caching": True}, "rounds": [[one] for one in CACHED]},
    "E4M3": {"engine": {"kv_cache_dtype": "fp8"}, "rounds": [[one] for one in CACHED]},
    "E4M3, prefix cache": {
        "engine": {"kv_cache_dtype": "fp8", "enable_prefix_caching": True},
        "rounds": [[one] for one in CACHED],
    },
    "E5M2": {"engine": {"kv_cache_dtype": "fp8_e5m2"}, "rounds": [[CACHED[0]]]},
    "switched off": {
        "engine": {"additional_config": {"sm70": dict.fromkeys(("gemma_rms_norm", "silu_mul", "qk_norm_rope"), False)}},
        "rounds": [[asked(20)]],
    },
}
BROKEN = {
    "engine": {"enable_prefix_caching": True},
    "rounds": [[asked(7), {"prompt": [1, 2, POISONED, 4], "tokens": 3}, asked(8)], [asked(9)]],
}
CORES = {2: "0|1", 4: "0|1|0|1"}
"""Where the threads of each rank run, by the number of ranks."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def poisoned(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with one token whose embedding is not a number."""
    folder = tmp_path_factory.mktemp("poisoned") / "model"
    shutil.copytree(tiny, folder)
    weights = load_file(tiny / "model.safetensors")
    weights["model.language_model.embed_tokens.weight"][POISONED] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run(model: Path, folder: Path, jobs: list[dict[str, Any]], **variables: str) -> tuple[list[Any], str]:
    """Return the answer to each job, fewer where the process ended before, and what the process wrote."""
    command = [sys.executable, "-m", "tests.system.engine.tiny_engines"]
    command.append(json.dumps([{"model": str(model), **job} for job in jobs]))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "engines.log"
    with log.open("wb") as stream:
        own = {"APPLIANCE_VLLM_PLATFORM": "sm70-reference", **variables}
        subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment(folder, **own),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=800,
            check=False,
        )
    text = log.read_text(errors="replace")
    answers = [line.partition("ANSWER ")[2] for line in text.splitlines() if "ANSWER {" in line]
    return [json.loads(answer) for answer in answers], text


@pytest.fixture(scope="module")
def told(tiny: Path, poisoned: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What one rank answers to every job, each by an engine of its own in one process, and what that process wrote."""
    jobs = {**JOBS, "poisoned": {"model": str(poisoned), **BROKEN}}
    found, text = run(tiny, tmp_path_factory.mktemp("engines"), list(jobs.values()), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert len(found) == len(jobs), text[-4000:]
    return dict(zip(jobs, found, strict=True)), text


@pytest.fixture(scope="module")
def answers(told: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return told[0]


@pytest.fixture(scope="module")
def ranks(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Any, Path]]:
    """What two and four ranks answer, and the run directory of each: their workers are processes of their own."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = []
    for count, cores in CORES.items():
        run_dir = folder / f"run-{count}"
        run_dir.mkdir()
        variables = {"VLLM_CPU_OMP_THREADS_BIND": cores, "APPLIANCE_RUN_DIR": str(run_dir)}
        rounds = [[asked(length) for length in (1, 7, 20)]]
        jobs.append({"engine": {"tensor_parallel_size": count}, "environment": variables, "rounds": rounds})
    found, text = run(tiny, folder, jobs, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    assert len(found) == len(jobs), text[-4000:]
    return {count: (answer, folder / f"run-{count}") for count, answer in zip(CORES, found, strict=True)}


def tokens(answer: Any) -> list[list[int]]:
    """The tokens of every request of an answer, in order."""
    return [request["tokens"] for requests in answer["rounds"] for request in requests]


def test_prompts_of_any_length_beside_running_requests_get_what_they_get_alone(answers: dict[str, Any]) -> None:
    alone = tokens(answers["alone"])
    count = len(LENGTHS) + len(TAILS)
    running, *others = tokens(answers["beside"])
    assert others == alone[:count]
    assert running == alone[count]
    assert len({tuple(each) for each in alone}) > count // 2, "the model must not answer everything alike"


def test_chunks_with_tails_of_any_length_get_what_a_whole_prompt_gets(answers: dict[str, Any]) -> None:
    alone = tokens(answers["alone"])
    whole = alone[len(LENGTHS) : len(LENGTHS) + len(TAILS)]
    chunked = tokens(answers["chunked"])
    assert chunked[: len(TAILS)] == whole
    assert chunked[len(TAILS)] == alone[len(LENGTHS) + len(TAILS)]
    assert chunked[len(TAILS) + 1 :] == whole


def test_a_cached_prefix_gives_the_tokens_that_computing_it_gives(answers: dict[str, Any]) -> None:
    plain = tokens(answers["alone"])[-2:]
    assert tokens(answers["prefix cache"]) == plain
    assert tokens(answers["E4M3, prefix cache"]) == tokens(answers["E4M3"])
    for name in ("prefix cache", "E4M3, prefix cache"):
        first, second = (requests[0]["cached"] for requests in answers[name]["rounds"])
        assert first == 0
        assert second > 100, name


def test_every_kv_cache_format_serves_to_the_end(answers: dict[str, Any]) -> None:
    for name in ("E4M3", "E5M2", "switched off"):
        for requests in answers[name]["rounds"]:
            assert [(each["reason"], len(each["tokens"])) for each in requests] == [("length", 3)], name


def test_routes_that_are_switched_off_leave_the_tokens_as_they_are(answers: dict[str, Any]) -> None:
    assert tokens(answers["switched off"]) == [tokens(answers["alone"])[19]]


def test_every_step_without_a_graph_is_counted(answers: dict[str, Any]) -> None:
    (counters,) = answers["switched off"]["counters"]
    (before,) = answers["E5M2"]["counters"]
    # One process ran all the engines: its counters go on. A prompt's step and one for each further token.
    assert counters["compile_graph.eager"] - before["compile_graph.eager"] == 3


def test_broken_logits_end_that_request_with_an_error_and_the_engine_lives(told: tuple[dict[str, Any], str]) -> None:
    answers, text = told
    together, later = answers["poisoned"]["rounds"]
    assert [each["reason"] for each in together] == ["length", "error", "length"]
    assert together[1]["tokens"] == []
    alone = tokens(answers["alone"])
    assert [together[0]["tokens"], together[2]["tokens"], later[0]["tokens"]] == alone[6:9]
    assert "nonfinite_requests" not in answers["switched off"]["counters"][0]
    assert answers["poisoned"]["counters"][0]["nonfinite_requests"] == 1
    assert "its logits are not finite" in text


@pytest.mark.parametrize("count", CORES)
def test_every_number_of_ranks_gives_the_same_tokens_and_every_rank_reports(
    count: int, ranks: dict[int, tuple[Any, Path]], answers: dict[str, Any]
) -> None:
    answer, run_dir = ranks[count]
    alone = tokens(answers["alone"])
    assert tokens(answer) == [alone[0], alone[6], alone[19]]
    assert len(answer["counters"]) == count
    for rank in range(count):
        record = rundir.read(run_dir / rundir.RANKS, f"{rank}.json")
        assert record is not None, f"rank {rank} left no report"
        assert set(record["routes"]) == set(ROUTES)
        assert record["routes"]["gdn_decode"]["details"]["served_by"] == "reference"


def test_strict_mode_refuses_to_start_and_names_the_routes(tiny: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    rundir.write(run_dir, rundir.PLAN, {"profile": "p", "expected_acceleration": ["fp8_dense", "gdn_decode"]})
    variables = {"APPLIANCE_RUN_DIR": str(run_dir), "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION": "1"}
    job = {"rounds": [[asked(1)]]}
    found, text = run(tiny, tmp_path / "engines", [job], VLLM_ENABLE_V1_MULTIPROCESSING="0", **variables)
    assert not found
    assert "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION=1 refuses to start with 2 expected routes off: fp8_dense" in text


def test_the_server_answers_and_tells_its_routes(tiny: Path, tmp_path: Path) -> None:
    engine = Engine(
        tiny,
        tmp_path,
        "--max-num-seqs=2",
        "--middleware=appliance.vllm_plugin.server.acceleration_endpoint.AccelerationEndpoint",
        "--limit-mm-per-prompt",
        '{"image": 0, "video": 0}',
        APPLIANCE_VLLM_PLATFORM="sm70-reference",
    )
    try:
        engine.wait()
        answer = engine.complete("Hello", 4)
        assert answer["usage"]["completion_tokens"] == 4
        told = engine.http.get("/v1/sm70/acceleration").json()
        assert set(told["routes"]) == set(ROUTES)
        assert told["ranks"] == [0]
        assert told["routes"]["gdn_prefill"]["details"]["served_by"] == "reference"
    finally:
        engine.stop()
