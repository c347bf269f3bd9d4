"""`appliance bench stream` as a person meets it: results and reports, exit statuses, one line for what is wrong."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from appliance import cli
from appliance.bench import result as results
from tests.bench.bench_openai import KEY, MODEL, RefusingServer, Server, good, running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("APPLIANCE_API_KEY", "VLLM_API_KEY", "APPLIANCE_PORT", "APPLIANCE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path / "no-run"))


def bench(server: Server, *words: str) -> int:
    return cli.main(["bench", "stream", "--url", server.url, "--input-len", "20", "--output-len", "4", *words])


def test_the_command_writes_results_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with running(Server(good)) as server:
        assert bench(server, "--out", str(out), "--concurrency", "1,2", "--top-k", "5", "--quiet", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["contract"]["workload"]["concurrency"] for one in printed] == [1, 2]
    assert sorted(file.name for file in out.iterdir()) == [
        "report.html",
        "report.md",
        "stream-20x4-c1.json",
        "stream-20x4-c2.json",
    ]
    found = results.read(out / "stream-20x4-c2.json")
    assert found.contract.workload.sampling == {"temperature": 0.0, "ignore_eos": True, "top_k": 5}
    assert found.totals is not None
    assert (found.totals.requests, found.totals.failed) == (4, 0)
    assert found.of("tpot_ms")[0].stats is not None


def test_a_series_that_ends_early_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    class Dying(Server):
        async def _tokenize(self, request: web.Request) -> web.Response:
            return web.Response(status=500) if self.bodies else await super()._tokenize(request)

    with running(Dying(good)) as server:
        assert bench(server, "--concurrency", "1,2", "--quiet") == 1
    shown = capsys.readouterr()
    assert "stream 20x4-c1" in shown.out
    assert "stream 20x4-c2" not in shown.out
    assert "/tokenize answers HTTP 500" in shown.err


def test_the_command_fails_where_a_request_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with running(RefusingServer(500)) as server:
        assert bench(server) == 1
    assert "NOT SOUND: 2 requests: HTTP 500" in capsys.readouterr().out


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    return shown.err


def test_an_engine_that_is_not_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "stream", "--url", "127.0.0.1:9", "--quiet"]) == 1
    assert "no engine answers at http://127.0.0.1:9" in one_line(capsys)


def test_the_key_is_asked_for_and_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(Server(good, key=KEY)) as server:
        assert bench(server, "--quiet") == 2
        assert "refuses a request without a key (HTTP 401)" in one_line(capsys)
        monkeypatch.setenv("APPLIANCE_API_KEY", "sk-wrong-9f2c")
        assert bench(server, "--quiet") == 2
        told = one_line(capsys)
        assert "refuses the key that was given" in told
        assert "9f2c" not in told
        (tmp_path / "key").write_text(f"{KEY}\n")
        assert bench(server, "--quiet", "--api-key-file", str(tmp_path / "key")) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "qwen3.8-27"], f'is not served at .*; did you mean "{MODEL}"'),
        (["--input-len", "4000", "--output-len", "97"], "4000 input and 97 output tokens are 4097; .* context of 4096"),
        (["--input-len", "20,4096"], "4096 input and 4 output tokens are 4100"),
        (["--input-len", "0"], '--input-len is "0"; wanted a whole number from 1 to 262144'),
        (["--concurrency", "1,x"], '--concurrency is "x"'),
        (["--extra-body", "{"], "--extra-body is no JSON"),
        (["--extra-body", '{"stream": false}'], "--extra-body sets stream"),
        (["--timeout", "-1"], '--timeout is "-1"; wanted seconds'),
        (["--tokenizer", "/nonexistent"], "no tokenizer.json in it"),
        (["--endpoint", "chat", "--tokenizer", "/x"], "knows no chat template"),
        (["--out", "/proc/nowhere"], "--out /proc/nowhere: cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    with running(Server(good)) as server:
        assert bench(server, "--quiet", *words) == 2
    found = one_line(capsys)
    assert re.search(told, found), found


def test_what_is_no_openai_api_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Other(Server):
        async def _models(self, _: web.Request) -> web.Response:
            return web.Response(text="<html>hello</html>")

    with running(Other(good)) as server:
        assert bench(server, "--quiet") == 1
    assert "wanted an engine's answer in JSON" in one_line(capsys)


def test_a_result_that_cannot_be_written_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: results.Result, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.Result, "write", full)
    with running(Server(good)) as server:
        assert bench(server, "--quiet", "--out", str(tmp_path / "out")) == 1
    shown = capsys.readouterr()
    assert "No space left on device" in shown.err
    assert json.loads(shown.out)["kind"] == "stream"
