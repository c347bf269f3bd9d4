"""The benchmarks against real vLLM on the CPU: decode steps, streams and vLLM's own serving benchmark."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli, rundir
from appliance.bench import client, serve, traces
from appliance.bench import result as results
from appliance.bench.options import Load
from appliance.bench.progress import Silent
from tests.system.engine.engine_harness import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BATCH = 4


@pytest.fixture(scope="module")
def measured(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with the run directory of `appliance serve`, which tells of each step how it ran."""
    options = [f"--max-num-seqs={BATCH}", "--max-num-batched-tokens=512", "--enable-prefix-caching"]
    options += ["--enable-prompt-tokens-details", "--cudagraph-metrics"]
    started = Engine(smollm2, tmp_path_factory.mktemp("bench"), *options)
    try:
        command = [str(Path(sys.executable).with_name("appliance")), "plan", "--json", "--profile", "portable_smollm2"]
        command += ["--model", str(smollm2), "--port", str(started.port), "--run-dir", str(started.run_dir)]
        command += ["--served-model-name", "smol", "--", *options]
        planned = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        rundir.write(started.run_dir, rundir.PLAN, json.loads(planned.stdout))
        started.wait()
        yield started
    finally:
        started.stop()


@pytest.fixture
def bench(
    measured: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, list[results.Result]]]:
    """Runs a verb; returns its exit status and its results."""
    for name in ("APPLIANCE_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(verb: str, *words: str) -> tuple[int, list[results.Result]]:
        measured.settle()
        out = tmp_path / "out"
        status = cli.main(["bench", verb, "--run-dir", str(measured.run_dir), "--out", str(out), "--quiet", *words])
        return status, [results.read(file) for file in sorted(out.glob("*.json"))]

    return run


DECODE = ("--input-len", "32", "--output-len", "24", "--concurrency", str(BATCH))


def test_decode_steps_out_of_the_real_record(bench: Any, measured: Engine) -> None:
    status, (result,) = bench("decode", *DECODE, "--eager")
    assert status == 0, result.failures
    repeats = result.of("decode_step_ms")
    assert [trace.label for trace in repeats] == ["1", "2"]
    recorded = traces.read(measured.run_dir).steps
    for trace in repeats:
        assert trace.stats is not None
        # 24 tokens are 23 decode steps; warm-up takes 4, and a step whose neighbour computes a prompt some more.
        assert 10 <= trace.stats.count <= 19
        for sample in trace.samples:
            assert any(
                abs(1000 * (after.t - before.t) - sample) < 0.01
                for before, after in itertools.pairwise(recorded)
                if after.requests == BATCH and after.decode_tokens == BATCH and not after.prefill_tokens
            )
    assert {one.reason for one in result.exclusions} >= {traces.PREFILL, traces.WARM_UP}
    assert result.contract.system.hardware
    assert result.contract.system.engine == "vLLM 0.19.1 (portable)"
    assert result.environment.profile == "portable_smollm2"
    assert any("steps NONE" in note for note in result.notes), "the CPU engine replays no graph, and says so"


def test_without_graph_replay_there_is_no_stable_step(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = bench("decode", *DECODE, "--output-len", "8", "--repeats", "1", "--warm-up-steps", "0")
    assert (status, found) == (1, [])
    assert traces.EAGER in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--prompt", "ids"), ("--prompt", "text"), ("--endpoint", "chat")], ids=["ids", "text", "chat"]
)
def test_streams_of_exact_length(bench: Any, words: tuple[str, ...]) -> None:
    length = ("--input-len", "260", "--output-len", "12")
    status, (result,) = bench("stream", *length, "--requests", "2", "--concurrency", "2", *words)
    assert status == 0, (result.failures, result.notes)
    assert result.totals is not None
    assert (result.totals.requests, result.totals.failed) == (4, 0)
    assert (result.totals.input_tokens, result.totals.output_tokens) == (4 * 260, 4 * 12)
    (per_token, _) = result.of("tpot_ms")
    assert per_token.stats is not None
    assert per_token.stats.count == 2
    assert all(trace.stats.count == 2 * 11 for trace in result.of("chunk_interval_ms") if trace.stats)
    assert not any("fewer than" in note for note in result.notes)


def test_cached_tokens_are_told(bench: Any) -> None:
    status, (result,) = bench("stream", "--input-len", "600", "--output-len", "4", "--repeats", "1", "--cached")
    assert status == 0
    assert result.totals is not None
    assert result.totals.cached_tokens
    assert result.contract.workload.cached_prompt is True
    assert "prefill_tokens_per_s" not in result.rates


def test_an_answer_that_ends_early_is_warned_of(bench: Any) -> None:
    """A sequence that must stop at any of its tokens, since all are stop tokens."""
    body = json.dumps({"stop_token_ids": list(range(49152))})
    status, (result,) = bench(
        "stream", "--input-len", "32", "--output-len", "8", "--repeats", "1", "--extra-body", body
    )
    assert status == 0
    assert any("WARNING: 1 of 1 answers have fewer than the 8 tokens" in note for note in result.notes)


def test_a_request_that_vllm_refuses_is_a_counted_failure(bench: Any) -> None:
    words = ("--input-len", "32", "--output-len", "8", "--repeats", "1", "--extra-body", '{"top_p": 7}')
    status, (result,) = bench("stream", *words)
    assert status == 1
    assert [(one.reason, one.count) for one in result.failures] == [("HTTP 400", 1)]
    assert any("top_p" in note for note in result.notes)


SERVE = ("--input-len", "128", "--output-len", "8", "--concurrency", "2", "--requests", "4")


def test_vllms_own_serving_benchmark(bench: Any, measured: Engine, smollm2: Path) -> None:
    status, (result,) = bench("serve", *SERVE)
    assert status == 0, (result.failures, result.notes)
    assert result.totals is not None
    assert (result.totals.completed, result.totals.input_tokens, result.totals.output_tokens) == (4, 512, 32)
    assert result.screen is not None
    assert "4 of the contract's 128 requests" in result.screen
    assert not any("could not be read" in note for note in result.notes), (
        "its prompts were checked by the engine's count"
    )
    assert sum(trace.share for trace in result.traces if trace.mode != "all") == pytest.approx(1)


def test_our_statistics_are_vllms(measured: Engine, smollm2: Path) -> None:
    load = Load(96, 8, 2, 4, 1, 7, dict(serve.CONTRACT.sampling), cached=False)
    target = client.Target(f"http://127.0.0.1:{measured.port}", None, measured.run_dir, {})
    raw = serve.measure(target, "smol", smollm2, load, Silent(), 120.0)
    whole: dict[str, results.Stats | None] = {
        trace.metric: trace.stats for trace in serve.result_traces(serve.Served(load, raw, {})) if trace.mode == "all"
    }
    for name in ("itl", "ttft"):
        stats = whole[f"{name}_ms"]
        assert stats is not None
        assert (stats.mean, stats.p50, stats.p99) == pytest.approx(
            (raw[f"mean_{name}_ms"], raw[f"median_{name}_ms"], raw[f"p99_{name}_ms"])
        )
    rates = serve.rates(serve.totals(serve.Served(load, raw, {})))
    assert rates["output_tokens_per_s"] == pytest.approx(raw["output_throughput"])


@pytest.mark.parametrize("verb", ["decode", "stream", "serve"])
def test_too_long_a_context_and_an_unknown_model_are_told(
    bench: Any, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    short = ("--output-len", "8", "--concurrency", "1")
    assert bench(verb, "--input-len", "2048", *short)[0] == 2
    assert "served with a context of 2048 tokens" in capsys.readouterr().err
    assert bench(verb, "--input-len", "32", *short, "--model", "smoll")[0] == 2
    assert 'did you mean "smol"?' in capsys.readouterr().err


def test_the_served_tokenizer_and_the_local_one_agree(measured: Engine, smollm2: Path) -> None:
    from appliance.bench import prompts

    target = client.Target(f"http://127.0.0.1:{measured.port}", None, measured.run_dir, {})

    async def both() -> tuple[list[str], list[int], list[int]]:
        async with client.session(target, 30.0) as opened:
            served, local = prompts.Served(opened, target, "smol"), prompts.Local(smollm2)
            made = await prompts.text_prompts(local, 321, 2, 1234, chat=False)
            counts = [len(await served.encode(text)) for text in made]
            return made, counts, [len(await local.encode(text)) for text in made]

    made, counts, locally = asyncio.run(both())
    assert counts == locally == [321, 321]
    assert made[0] != made[1]
