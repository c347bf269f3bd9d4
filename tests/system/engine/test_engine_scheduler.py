"""The step record against every kind of scheduling that vLLM has: synchronous, asynchronous, with drafted tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance import rundir
from tests.system.engine.engine_harness import environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

SIMULATION = Path(__file__).with_name("scheduler_simulation.py")


@pytest.fixture(scope="module", params=["sync", "async", "drafts"])
def simulated(request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The mode, and for each of `roomy` and `scarce` what happened and the sums of the step record."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, str(SIMULATION), str(smollm2), str(folder), request.param]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=280, env=environment(folder), cwd=folder
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads((folder / "results.json").read_text())
    for name, result in results.items():
        steps = [json.loads(line) for line in (folder / name / rundir.STEPS).read_text().splitlines()]
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        steps = steps[: result["executed"]]
        assert all(0 < step["requests"] <= 4 for step in steps)
        assert all(step["graph"] == "FULL" for step in steps)
        assert result["graphs_left_to_log"] == 0, "of the record's graphs vLLM logs no table"
        assert all(0 < step["prefill_tokens"] + step["decode_tokens"] <= 64 for step in steps)
        result["record"] = {
            key: sum(step[key] for step in steps) for key in ("prefill_tokens", "decode_tokens", "generated_tokens")
        }
    return request.param, results


def test_the_scheduler_is_the_one_that_vllm_would_have_chosen(simulated: Any) -> None:
    mode, results = simulated
    wanted = "RecordingAsyncScheduler" if mode == "async" else "RecordingScheduler"
    assert {result["scheduler"] for result in results.values()} == {wanted}


def test_prompts_and_answers_are_counted_exactly(simulated: Any) -> None:
    mode, results = simulated
    roomy = results["roomy"]
    assert (roomy["preemptions"], roomy["unfinished"]) == (0, [])
    record = roomy["record"]
    assert record["prefill_tokens"] == roomy["prompts"]
    assert record["generated_tokens"] == roomy["generated"]
    first_tokens_come_from_prefill = roomy["generated"] - roomy["requests"]
    if mode == "drafts":
        assert record["decode_tokens"] > first_tokens_come_from_prefill, "rejected drafts are decoded too"
    else:
        assert record["decode_tokens"] == first_tokens_come_from_prefill


def test_preempted_requests_count_as_prefill_when_they_are_computed_anew(simulated: Any) -> None:
    mode, results = simulated
    scarce = results["scarce"]
    assert scarce["preemptions"] > 0
    assert len(scarce["unfinished"]) == 1, "one was aborted"
    record = scarce["record"]
    assert record["prefill_tokens"] > scarce["prompts"]
    assert record["generated_tokens"] == scarce["generated"]
    if mode == "sync":
        assert record["decode_tokens"] == scarce["generated"] - scarce["requests"]


def test_rounds_that_execute_nothing_are_no_steps(simulated: Any) -> None:
    _, results = simulated
    for result in results.values():
        assert result["after_an_empty_round"] == result["executed"]


def test_an_aborted_request_is_reported_as_running_no_more(simulated: Any) -> None:
    """The last statistics before the engine idles must not say that it works: no further ones come."""
    _, results = simulated
    assert [result["running_before_and_after_an_abort"] for result in results.values()] == [[1, 0], [1, 0]]
