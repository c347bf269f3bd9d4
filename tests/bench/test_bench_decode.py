"""`bench decode` against a played engine that answers and writes its step record."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from appliance import cli, rundir
from appliance.bench import decode, prompts, run_directory, traces
from appliance.bench import result as results
from tests.bench import bench_samples as samples
from tests.bench.bench_openai import Server, good, running, tokens_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("complete_build")


BATCH, OUTPUT = 4, 40

STEP_S = 0.002


class Engine(Server):
    """Answers a full batch at once, after it has recorded its steps."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(good)
        self.run_dir = run_dir
        self.step = 0
        self.rounds = 0
        self.generated = 0
        self.foreign_tokens = 0
        self.fail: set[int] = set()
        """Numbers of measured requests that meet HTTP 500."""
        self.graph: str | None = None
        self.records = True
        self._waiting: list[asyncio.Event] = []
        self.whole = self._batch

    async def _batch(self, bodies: list[dict[str, Any]], body: dict[str, Any]) -> web.Response:
        mine = asyncio.Event()
        self._waiting.append(mine)
        number = len(bodies)
        if len(self._waiting) == BATCH:
            self.rounds += 1
            if self.records:
                self._record(body["max_tokens"])
            together, self._waiting = self._waiting, []
            await asyncio.sleep(STEP_S * body["max_tokens"])
            for one in together:
                one.set()
        await mine.wait()
        if self.rounds > 1 and number in self.fail:
            return web.Response(status=500, text="no memory")
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        choice = {"index": 0, "text": "x", "token_ids": [7] * body["max_tokens"], "finish_reason": "length"}
        return web.json_response({"choices": [choice], "usage": usage})

    def _record(self, tokens: int) -> None:
        at = rundir.clock()
        lines = []
        for index in range(tokens):
            self.step += 1
            line = {
                "t": round(at + STEP_S * index, 6),
                "step": self.step,
                "running": BATCH if index < tokens - 1 else 0,
                "waiting": 0,
                "requests": BATCH,
                "prefill_tokens": 0 if index else 80,
                "decode_tokens": BATCH if index else 0,
                "generated_tokens": BATCH + (self.foreign_tokens if index == 5 else 0),
            }
            lines.append(json.dumps(line if self.graph is None else {**line, "graph": self.graph}))
        with (self.run_dir / rundir.STEPS).open("a") as file:
            file.write("\n".join(lines) + "\n")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ready engine's, whose plan names another port."""
    for name in ("APPLIANCE_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(decode, "SETTLE_S", 1.0)
    folder = tmp_path / "run"
    folder.mkdir()
    run_directory.write_ready(folder)
    return folder


def bench(server: Server, run_dir: Path, *words: str) -> int:
    command = ["bench", "decode", "--url", server.url, "--run-dir", str(run_dir), "--quiet", "--input-len", "20"]
    return cli.main([*command, "--output-len", str(OUTPUT), "--concurrency", str(BATCH), *words])


def test_stable_steps_of_every_repeat(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir, "--repeats", "3", "--out", str(tmp_path / "out")) == 0
    result = results.read(tmp_path / "out" / "decode-20x40-c4.json")
    assert engine.rounds == 1 + 3
    steps = result.of("decode_step_ms")
    assert [trace.label for trace in steps] == ["1", "2", "3"]
    # 40 steps are 39 intervals: one begins with prefill, four are warm-up.
    assert [len(trace.samples) for trace in steps] == [34] * 3
    assert {round(sample, 2) for trace in steps for sample in trace.samples} == {1000 * STEP_S}
    assert {one.reason: one.count for one in result.exclusions} == {traces.WARM_UP: 12, traces.PREFILL: 3}
    assert result.rates == {"output_tokens_per_s": pytest.approx(BATCH / STEP_S, rel=1e-4)}
    assert result.totals is None, "no wall time"
    assert not result.failures
    assert result.contract.system.hardware == "Tesla V100-SXM2-16GB"
    assert result.environment.profile == "qwen38_27b_nvfp4_dflash2"
    assert result.environment.topology
    assert any("does not tell which steps were graph replays" in note for note in result.notes)
    assert "Stable" not in capsys.readouterr().err


def test_a_rehearsal_is_told_before_all_other_notes(run_dir: Path, tmp_path: Path) -> None:
    line = "rehearsal: no time and no rate that it gives is a V100's"
    rundir.write(run_dir, rundir.PLAN, {**(rundir.read(run_dir, rundir.PLAN) or {}), "rehearsal": line})
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir, "--out", str(tmp_path / "out")) == 0
    assert results.read(tmp_path / "out" / "decode-20x40-c4.json").notes[0] == f"WARNING: {line}"


def test_prompts_are_new_for_every_repeat_and_the_same_when_cached(run_dir: Path) -> None:
    for words, kinds in (((), 3 * BATCH), (("--cached",), BATCH)):
        engine = Engine(run_dir)
        with running(engine):
            assert bench(engine, run_dir, *words) == 0
        assert len({tuple(body["prompt"]) for body in engine.bodies}) == kinds
        known = set(tokens_of(" ".join(prompts.WORDS)))
        assert {token for body in engine.bodies for token in body["prompt"]} <= known


def test_requests_of_somebody_else_make_it_unsound(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    engine.foreign_tokens = 3
    with running(engine):
        assert bench(engine, run_dir) == 1
    assert "NOT SOUND: 6 tokens: tokens in the record that this benchmark did not ask for" in capsys.readouterr().out


def test_a_record_that_lacks_steps_makes_it_unsound(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    engine.foreign_tokens = -1
    with running(engine):
        assert bench(engine, run_dir) == 1
    assert f"NOT SOUND: 2 tokens: {decode.MISSING_TOKENS}" in capsys.readouterr().out


def test_steps_that_could_not_be_written_are_told(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(Engine):
        def _record(self, tokens: int) -> None:
            super()._record(tokens)
            file = self.run_dir / rundir.STEPS
            *kept, last = file.read_text().splitlines()
            kept[-5] = json.dumps({"t": json.loads(kept[-5])["t"], "lost": 1, "reason": "No space left on device"})
            file.write_text("\n".join([*kept, last]) + "\n")

    engine = Full(run_dir)
    with running(engine):
        assert bench(engine, run_dir) == 0
    told = capsys.readouterr().out
    assert "2 steps are missing from the record" in told
    assert f"| {traces.GAP} | 2 steps |" in told


def test_failed_requests_are_counted(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    engine.fail = {BATCH + 1}
    with running(engine):
        assert bench(engine, run_dir, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failures"] == [{"reason": "HTTP 500", "count": 1, "unit": "requests"}]


def test_a_request_of_the_warm_up_that_failed_is_counted_too(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Cold(Engine):
        async def _batch(self, bodies: list[dict[str, Any]], body: dict[str, Any]) -> web.Response:
            first = len(bodies) == 1
            answer = await super()._batch(bodies, body)
            return web.Response(status=500, text="cold") if first else answer

    engine = Cold(run_dir)
    with running(engine):
        assert bench(engine, run_dir, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failures"] == [{"reason": "in the warm-up: HTTP 500", "count": 1, "unit": "requests"}]
    assert [trace["stats"]["count"] for trace in result["traces"]] == [34, 34]


def test_what_was_measured_before_the_engine_went_away_is_kept(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dying(Engine):
        async def _batch(self, bodies: list[dict[str, Any]], body: dict[str, Any]) -> web.Response:
            gone = len(bodies) > 2 * BATCH
            return web.Response(status=503, text="gone") if gone else await super()._batch(bodies, body)

    engine = Dying(run_dir)
    with running(engine):
        assert bench(engine, run_dir, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["failures"] == [{"reason": "HTTP 503", "count": BATCH, "unit": "requests"}]
    assert [trace["stats"] and trace["stats"]["count"] for trace in result["traces"]] == [34, None]
    assert "no stable step in repeat 2" in result["notes"]


def test_an_eager_step_is_no_graph_replay(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    engine.graph = "NONE"
    with running(engine):
        assert bench(engine, run_dir) == 1
        told = capsys.readouterr().err
        assert (
            "no stable decode step was recorded (76 steps: no CUDA graph was replayed; 2 steps: prompt tokens" in told
        )
        assert "--eager counts steps without a graph" in told
        assert bench(engine, run_dir, "--eager") == 0
        assert "68 steps NONE" in capsys.readouterr().out


def test_too_short_an_answer_has_no_stable_step(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir, "--warm-up-steps", "50") == 1
    assert "give more --output-len or fewer --concurrency" in capsys.readouterr().err


def test_another_engines_run_directory_is_noticed(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir) == 0
        capsys.readouterr()
        engine.records = False
        assert bench(engine, run_dir) == 1
    assert "it is not that engine's run directory" in capsys.readouterr().err


def test_an_engine_that_is_not_ready_has_requests_of_its_own(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phase = rundir.read(run_dir, rundir.PHASE) or {}
    rundir.write(run_dir, rundir.PHASE, {**phase, "phase": "warming"})
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir) == 1
    assert "the engine is warming, not ready" in capsys.readouterr().err


def test_an_engine_without_a_step_record(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beat = rundir.read(run_dir, rundir.HEARTBEAT) or {}
    rundir.write(run_dir, rundir.HEARTBEAT, {**beat, "steps_record": "off: --scheduler-cls is mine"})
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir) == 1
    assert "keeps no step record: off: --scheduler-cls is mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (["--concurrency", "5"], "--concurrency 5 is more than the engine's max_num_seqs of 4", 2),
        (["--warm-up-steps", "-1"], '--warm-up-steps is "-1"', 2),
        (["--run-dir", "/nonexistent"], "/nonexistent holds no plan.json of that engine", 1),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_sent(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str, status: int
) -> None:
    engine = Engine(run_dir)
    with running(engine):
        assert bench(engine, run_dir, *words) == status
    assert told in capsys.readouterr().err
    assert engine.bodies == []


def test_speculation_is_told_by_the_tokens_of_a_round() -> None:
    lines = [json.loads(line) for line in samples.record([17.5] * 10, batch=4)]
    steps = traces.parse([json.dumps({**line, "generated_tokens": 14}) for line in lines]).steps
    decoded = decode.Decoded([traces.stable(steps, 4, samples.WARM_UP)])
    assert decode.acceptance(decoded, 4) == 3.5
    assert decode.tokens_per_s(decoded) == pytest.approx(800)
