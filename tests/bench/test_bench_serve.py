"""`bench serve` on a child that stands for vLLM's benchmark; the real one is in tests/system/engine."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from appliance import cli
from appliance.bench import client, serve
from appliance.bench import result as results
from appliance.bench.options import Load
from appliance.bench.progress import Lines, Silent
from appliance.errors import CheckError
from tests.bench import bench_samples as samples
from tests.bench.bench_openai import MODEL, Server, good, running
from tests.waiting import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = client.Target("http://127.0.0.1:9", "sk-secret", Path("/nonexistent"), {})


def small(**changes: Any) -> Load:
    told: dict[str, Any] = {"input_tokens": 64, "output_tokens": 5, "concurrency": 2, "requests": 3}
    rest = {"repeats": 1, "seed": 1234, "sampling": dict(serve.CONTRACT.sampling), "cached": False}
    return Load(**{**told, **rest, **changes})


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes `text` the program that runs instead of vLLM's benchmark; `arguments` are its options by name."""
    program = tmp_path / "program.py"
    real = serve.command

    def use(text: str) -> None:
        head = (
            "import json, os, sys, time\n"
            "words = sys.argv[1:]\n"
            "arguments = dict(zip(words, words[1:]))\n"
            "def write(record):\n"
            "    with open(os.path.join(arguments['--result-dir'], arguments['--result-filename']), 'w') as file:\n"
            "        json.dump(record, file)\n"
        )
        program.write_text(head + textwrap.dedent(text))

    def command(*told: Any) -> list[str]:
        made = real(*told)
        return [sys.executable, str(program), *made[3:]]

    monkeypatch.setattr(serve, "command", command)
    return use


GOOD = """
n, out = int(arguments["--num-prompts"]), int(arguments["--random-output-len"])
for done in range(n + 1):
    print(f"{done}/{n} [00:01<00:01]", end="\\r", file=sys.stderr, flush=True)
write({"duration": 2.0, "input_lens": [int(arguments["--random-input-len"])] * n, "output_lens": [out] * n,
       "ttfts": [0.5] * n, "itls": [[0.05] * (out - 2) + [4.5]] * n, "errors": [""] * n})
"""


def measured(load: Load, silence_s: float = 20.0, progress: Any = None) -> dict[str, Any]:
    return serve.measure(TARGET, MODEL, Path("/models/qwen"), load, progress or Silent(), silence_s)


def test_the_contract_is_the_published_one() -> None:
    words = serve.command(TARGET, MODEL, Path("/models/qwen"), serve.CONTRACT, Path("/tmp/x"))
    options = dict(itertools.pairwise(words))
    assert options["--dataset-name"] == "random"
    assert options["--seed"] == "1234"
    assert (options["--random-input-len"], options["--random-output-len"]) == ("32768", "256")
    assert (options["--random-range-ratio"], options["--request-rate"]) == ("0", "inf")
    assert (options["--num-prompts"], options["--max-concurrency"]) == ("128", "32")
    assert json.loads(options["--extra-body"]) == {"temperature": 0.0}
    assert "--ignore-eos" in words
    assert "--save-detailed" in words
    assert not any("sk-secret" in word for word in words), "every user of the machine sees a command line"
    assert serve.departures(serve.CONTRACT) is None


def test_the_childs_environment_has_the_key_and_no_proxy() -> None:
    given = {"HTTPS_PROXY": "http://proxy:1", "http_proxy": "x", "APPLIANCE_RUN_DIR": "/run", "PATH": "/bin"}
    found = serve.child_environment(TARGET, {**given, "OPENAI_API_KEY": "sk-of-somebody-else"})
    assert found["OPENAI_API_KEY"] == "sk-secret"
    assert found["HF_HUB_OFFLINE"] == "1"
    assert found["PATH"] == "/bin"
    assert not {"HTTPS_PROXY", "http_proxy", "APPLIANCE_RUN_DIR"} & found.keys()
    without = serve.child_environment(client.Target("http://x", None, Path("/r"), {}), {"OPENAI_API_KEY": "sk-other"})
    assert "OPENAI_API_KEY" not in without


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"requests": 40}, "40 of the contract's 128 requests"),
        ({"input_tokens": 2048}, "2048 instead of 32768 input tokens"),
        ({"seed": 7, "concurrency": 8}, "8 instead of 32 requests at a time, 7 instead of 1234 as seed"),
        ({"sampling": {"temperature": 1.0}}, "other sampling than the contract's"),
    ],
)
def test_whatever_departs_from_the_contract_is_a_screen(changes: dict[str, Any], told: str) -> None:
    contract = {name: getattr(serve.CONTRACT, name) for name in serve.CONTRACT.__dataclass_fields__}
    assert serve.departures(Load(**{**contract, **changes})) == told


def test_vllms_result_is_read_and_its_progress_shown(child: Any) -> None:
    child(GOOD)
    lines: list[str] = []
    now = iter(range(0, 10_000, 10))
    raw = measured(small(), progress=Lines(lines.append, lambda: float(next(now))))
    assert raw["output_lens"] == [5, 5, 5]
    assert any("100 %" in line for line in lines)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise ValueError('the tokenizer is not there')", "status 1: ValueError: the tokenizer is not there"),
        ("sys.exit(3)", "status 3: it said nothing"),
        ("import vllm_is_nowhere", "status 1: ModuleNotFoundError"),
        ("raise ModuleNotFoundError(\"No module named 'vllm'\")", "vLLM is not installed here"),
        ("pass", "ended with status 0: it said nothing"),
        ("os.kill(os.getpid(), 9)", "status -9"),
    ],
)
def test_a_benchmark_that_fails_is_told_in_one_line(child: Any, program: str, told: str) -> None:
    child(program)
    with pytest.raises(CheckError) as caught:
        measured(small())
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_benchmark_that_hangs_is_ended(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(f"open('new', 'w').write(str(os.getpid()))\nos.rename('new', {str(tmp_path / 'pid')!r})\ntime.sleep(600)")
    monkeypatch.chdir(tmp_path)
    started, clock = time.monotonic(), time.monotonic
    # The silence begins when the child has told who it is, however long its start takes.
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 300 * (tmp_path / "pid").exists())
    with pytest.raises(CheckError, match=r"no request was finished for 200 s, 0 before that"):
        measured(small(), silence_s=200.0)
    assert clock() - started < 200
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_benchmark_that_is_ended_takes_its_child_along(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from appliance.bench import client, serve\n"
        "from appliance.bench.progress import Silent\n"
        "child = 'import os, sys, time; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(600)'\n"
        f"serve.command = lambda *_: [sys.executable, '-c', child, {str(tmp_path / 'pid')!r}]\n"
        "target = client.Target('http://x', None, Path('/r'), {})\n"
        "serve.measure(target, 'm', Path('/t'), serve.CONTRACT, Silent(), 600.0)\n"
    )
    parent = psutil.Popen([sys.executable, "-c", program])
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    parent.terminate()
    assert parent.wait(LIMIT_S) == 128 + 15
    psutil.wait_procs([child], timeout=LIMIT_S)
    assert not child.is_running()


def served(load: Load, counters: dict[str, float] | None = None, **changes: Any) -> serve.Served:
    raw = samples.serving(load, [50.0] * (load.requests * (load.output_tokens - 1)), 2.0)
    return serve.Served(load, {**raw, **changes}, counters or {})


def test_wrong_counts_are_failures() -> None:
    found = served(small(), input_lens=[64, 63, 64], output_lens=[5, 5, 4])
    assert {one.reason: one.count for one in serve.failures(found)} == {serve.WRONG_INPUT: 1, serve.WRONG_OUTPUT: 1}
    whole = serve.totals(found)
    assert (whole.requests, whole.completed, whole.failed) == (3, 1, 2)
    assert (whole.input_tokens, whole.output_tokens) == (64, 5)
    assert serve.rates(whole)["output_tokens_per_s"] == 2.5
    (between, *_) = serve.result_traces(found)
    assert between.stats is not None
    assert between.stats.count == 4, "of the one request whose counts are right"


def test_errors_are_failures_with_their_last_line() -> None:
    text = "Traceback (most recent call last):\n  File x\nConnectionResetError: peer\n"
    found = served(small(requests=4), errors=["", text, "Internal Server Error", ""], output_lens=[5, 0, 0, 0])
    assert {one.reason: one.count for one in serve.failures(found)} == {
        "ConnectionResetError: peer": 1,
        "Internal Server Error": 1,
        "failed without a reason": 1,
    }
    assert serve.totals(found).failed == 3


def test_the_engines_own_count_of_prompt_tokens_is_asserted() -> None:
    assert serve.failures(served(small(), {"prompt_tokens": 192.0})) == ()
    (one,) = serve.failures(served(small(), {"prompt_tokens": 195.0}))
    assert (one.reason, one.count, one.unit) == (serve.SERVER_INPUT, 3, "tokens")


def test_warm_prompts_and_preemptions_are_told() -> None:
    told = serve.notes(served(small(), {"prompt_tokens": 192.0, "prefix_cache_hits": 128.0, "num_preemptions": 2.0}))
    assert any("WARNING: 128 prompt tokens came out of the prefix cache" in note for note in told)
    assert any("2 preemptions" in note for note in told)
    assert any("could not be read" in note for note in serve.notes(served(small())))


def test_prompts_out_of_the_prefix_cache_make_a_screen() -> None:
    assert serve.departures(serve.CONTRACT, 0) is None
    assert serve.departures(serve.CONTRACT, None) is None, "not told is no departure"
    assert serve.departures(serve.CONTRACT, 96) == "96 prompt tokens out of the prefix cache instead of 0"


def test_counters_that_began_anew_tell_nothing() -> None:
    before = {"prompt_tokens": 100.0, "prefix_cache_hits": 8.0}
    assert serve.growth(before, {"prompt_tokens": 292.0, "prefix_cache_hits": 8.0, "num_preemptions": 1.0}) == {
        "prompt_tokens": 192.0,
        "prefix_cache_hits": 0.0,
        "num_preemptions": 1.0,
    }
    assert serve.growth(before, {"prompt_tokens": 192.0, "prefix_cache_hits": 0.0}) == {}
    assert serve.growth({}, {"prompt_tokens": 192.0}) == {}
    assert serve.growth(before, {}) == {}


def test_vllms_counters_are_read_and_summed() -> None:
    text = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1536.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 4.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 1536.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1e3
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""
    assert serve.counters(text) == {"prompt_tokens": 1540.0, "prefix_cache_hits": 1000.0}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command against a server that lists a model."""
    for name in ("APPLIANCE_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path / "no-run"))

    def run(*words: str, context: int = 40_000) -> int:
        with running(Server(good, max_model_len=context)) as server:
            command = ["bench", "serve", "--url", server.url, "--tokenizer", str(tmp_path), "--quiet", *words]
            return cli.main(command)

    return run


def test_a_screen_says_so_everywhere(
    bench: Any, child: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child(GOOD)
    out = tmp_path / "out"
    assert bench("--screen", "--out", str(out)) == 0
    told = "SCREEN, no acceptance run: 40 of the contract's 128 requests."
    assert told in capsys.readouterr().out
    result = results.read(out / "serve-32768x256-c32-screen.json")
    assert result.screen == "40 of the contract's 128 requests"
    assert result.contract.workload.requests == 40
    assert told in (out / "report.md").read_text()
    assert told.replace("'", "&#x27;") in (out / "report.html").read_text()


def test_the_whole_contract_is_no_screen(bench: Any, child: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child(GOOD)
    assert bench("--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["screen"] is None
    assert result["totals"]["output_tokens"] == 128 * 256
    assert {trace["mode"]: trace["share"] for trace in result["traces"] if trace["metric"] == "itl_ms"} == {
        "all": 1.0,
        "under 100 ms": pytest.approx(254 / 255),
        "100 ms to 4 s": 0.0,
        "over 4 s": pytest.approx(1 / 255),
    }


def test_a_wrong_count_fails_the_command(bench: Any, child: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child(GOOD.replace("[out] * n", "[out - 1] + [out] * (n - 1)"))
    assert bench("--screen") == 1
    assert f"NOT SOUND: 1 request: {serve.WRONG_OUTPUT}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "context", "told"),
    [
        ([], 4096, "32768 input and 256 output tokens are 33024"),
        (["--screen", "--requests", "40"], 40_000, "--screen and --requests both say how many"),
        (["--requests", "many"], 40_000, '--requests is "many"'),
        (["--tokenizer", "/nonexistent"], 40_000, "--tokenizer /nonexistent: not there"),
        (["--model", "other"], 40_000, '--model "other" is not served'),
    ],
)
def test_what_cannot_be_meant_is_told(
    bench: Any, child: Any, capsys: pytest.CaptureFixture[str], words: list[str], context: int, told: str
) -> None:
    child("raise SystemExit('it must not run')")
    assert bench(*words, context=context) == 2
    assert told in capsys.readouterr().err


def test_without_a_run_directory_the_tokenizer_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path))
    assert cli.main(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 2
    assert "name one with its tokenizer by --tokenizer" in capsys.readouterr().err
