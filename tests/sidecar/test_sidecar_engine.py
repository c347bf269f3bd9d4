"""The sidecar's question to the engine: answered, refused, odd, slow, hung, and gone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import rundir
from appliance.acceleration import report
from appliance.acceleration.routes import ROUTES
from appliance.errors import ConfigurationError
from appliance.rundir.plan import PlanRecord
from appliance.sidecar import engine as asked
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options, check_url
from appliance.sidecar.services import Services
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Put = Callable[..., None]

KEY = "key-of-the-engine-in-the-test"


class FakeEngine(ThreadingHTTPServer):
    """Answers with `status` and `body`, after `release` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = 200
        self.body = json.dumps(written())
        self.asked: list[tuple[str, str | None]] = []
        self.release = threading.Event()
        self.release.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.server.release.wait(LIMIT_S)
        body = self.server.body.encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def written(**changes: Any) -> dict[str, Any]:
    states = {name: report.RouteState("enabled") for name in ROUTES}
    return {**report.report("of the engine", ["gdn_decode"], states), "ranks": [0, 1], **changes}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience for a test."""
    monkeypatch.setattr(asked, "TIMEOUT_S", 0.4)
    monkeypatch.setattr(asked, "WAIT_S", 0.1)


def answer(services: Services, *, ask: bool = True) -> httpx.Response:
    """Ask once as the thread does, then answer as the endpoint does."""
    if ask:
        services.engine.ask()

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return await client.get("/v1/sm70/acceleration")

    return asyncio.run(get())


def over(engine: FakeEngine, run_dir: Path, **options: Any) -> Services:
    return Services(Options(run_dir, engine_url=engine.url, **options))


def test_the_engines_own_answer_is_told(engine: FakeEngine, run_dir: Path) -> None:
    body = answer(over(engine, run_dir)).json()
    assert (body["source"], body["stale"], body["stale_reason"]) == ("engine", False, None)
    assert body["profile"] == "of the engine"
    assert body["ranks"] == [0, 1]
    assert 0 <= body["age_s"] < 30
    assert engine.asked == [("/v1/sm70/acceleration", None)]


def test_the_key_goes_to_the_engine_and_nowhere_else(
    engine: FakeEngine, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    services = over(engine, run_dir, engine_key=KEY, token=KEY[::-1])
    with caplog.at_level(logging.DEBUG):
        told = answer(services)
        engine.status, engine.body = 401, f'{{"reason": "{KEY} is wrong"}}'
        refused = answer(services)
    assert engine.asked[0][1] == f"Bearer {KEY}"
    assert KEY not in told.text + refused.text + caplog.text + repr(services.options)
    assert KEY[::-1] not in repr(services.options)
    assert refused.json()["stale_reason"] == (
        "the engine refuses the key (HTTP 401); give the sidecar the engine's APPLIANCE_API_KEY_FILE"
    )


def test_a_key_that_no_header_can_carry_is_not_told_either(engine: FakeEngine, run_dir: Path) -> None:
    services = over(engine, run_dir, engine_key=f"{KEY}\r\nX: y")
    services.engine.ask()
    assert services.engine.problem() == "the engine cannot be reached: ValueError"
    assert engine.asked == []


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, "Not Found", "the engine answers /v1/sm70/acceleration with HTTP 404"),
        (
            503,
            '{"reason": "the engine has written no readable acceleration.json"}',
            "the engine answers /v1/sm70/acceleration with HTTP 503: the engine has written no readable "
            "acceleration.json",
        ),
        (200, "not JSON", "the engine's answer to /v1/sm70/acceleration is no acceleration report"),
        (200, "[" * 100_000, "the engine's answer to /v1/sm70/acceleration is no acceleration report"),
        (200, "[1]", "the engine's answer to /v1/sm70/acceleration is no acceleration report"),
        (200, '{"routes": {"x": 1}}', "the engine's answer to /v1/sm70/acceleration is no acceleration report"),
        (200, "", "the engine's answer to /v1/sm70/acceleration is no acceleration report"),
    ],
)
def test_an_answer_that_is_no_report_leaves_the_last_one(
    status: int, body: str, reason: str, engine: FakeEngine, run_dir: Path
) -> None:
    services = over(engine, run_dir)
    answer(services)
    engine.status, engine.body = status, body
    told = answer(services).json()
    assert (told["source"], told["stale"], told["stale_reason"]) == ("engine", True, reason)
    assert told["profile"] == "of the engine"


@pytest.mark.usefixtures("quick")
def test_a_hung_engine_hangs_no_answer(engine: FakeEngine, run_dir: Path) -> None:
    services = over(engine, run_dir)
    with services.running():
        assert answer(services, ask=False).json()["stale"] is False
        engine.release.clear()
        services.engine.known = replace(services.engine.known, at=time.monotonic() - 60)
        began = time.monotonic()
        told = answer(services, ask=False).json()
        # The wait for fresh news is 0.1 s; the engine would hang for 120.
        assert time.monotonic() - began < LIMIT_S / 2
        assert told["profile"] == "of the engine"
        assert told["age_s"] >= 60
        while services.engine.known.problem is None:
            time.sleep(0.02)
        told = answer(services, ask=False).json()
    assert told["stale"] is True
    assert told["stale_reason"].startswith(("the engine does not answer within", "the engine was asked "))


@pytest.mark.usefixtures("quick")
def test_an_engine_that_answers_is_waited_for(
    engine: FakeEngine, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = over(engine, run_dir)
    monkeypatch.setattr(asked, "WAIT_S", LIMIT_S)
    with services.running():
        while services.engine.known.report is None:
            time.sleep(0.02)
        services.engine.known = replace(services.engine.known, at=time.monotonic() - 60)
        told = answer(services, ask=False).json()
    assert told["age_s"] < 30


def test_an_engine_that_was_never_reached_is_known_from_the_run_directory(run_dir: Path, put: Put) -> None:
    put()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    services = Services(Options(run_dir, engine_url=f"http://127.0.0.1:{port}"))
    told = answer(services).json()
    assert (told["source"], told["stale"]) == ("run directory", True)
    assert told["stale_reason"] == "the engine cannot be reached: Connection refused"


def test_without_an_address_that_is_said(run_dir: Path) -> None:
    answered = answer(Services(Options(run_dir)))
    assert answered.status_code == 503


def test_a_later_start_is_believed_more_than_the_last_answer(engine: FakeEngine, run_dir: Path, put: Put) -> None:
    services = over(engine, run_dir)
    answer(services)
    engine.status = 500
    put(acceleration={"profile": "of the later start"})
    later = time.time() + 60
    os.utime(run_dir / rundir.ACCELERATION, (later, later))
    told = answer(services).json()
    assert (told["profile"], told["source"], told["stale"]) == ("of the later start", "run directory", True)


def test_nobody_else_sets_the_sidecars_own_fields(engine: FakeEngine, run_dir: Path) -> None:
    engine.body = json.dumps(written(age_s=-1, stale=True, stale_reason="x", source="z"))
    told = answer(over(engine, run_dir)).json()
    assert (told["stale"], told["stale_reason"], told["source"]) == (False, None, "engine")
    assert told["age_s"] >= 0


@pytest.mark.parametrize(
    ("host", "arguments", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8000"),
        ("0.0.0.0", {}, "http://127.0.0.1:8000"),
        ("::", {}, "http://[::1]:8000"),
        ("fe80::1", {"ssl_certfile": {"value": "c"}}, "https://[fe80::1]:8000"),
        ("engine.internal", {}, "http://engine.internal:8000"),
    ],
)
def test_the_plan_says_where_the_engine_is(host: str, arguments: dict[str, Any], url: str) -> None:
    plan = {"settings": {"host": {"value": host}, "port": {"value": 8000}}, "arguments": arguments}
    assert asked.planned_url(PlanRecord.from_json(plan)) == url


@pytest.mark.parametrize("plan", [None, {}, {"settings": []}, {"settings": {"host": {"value": 1}}, "arguments": {}}])
def test_a_plan_that_does_not_say_it_is_no_error(plan: dict[str, Any] | None) -> None:
    assert asked.planned_url(None if plan is None else PlanRecord.from_json(plan)) is None


@pytest.mark.parametrize("url", ["http://engine:8000", "https://engine/", "http://[::1]:8000", "http://h/below"])
def test_an_address_of_the_engine(url: str) -> None:
    assert check_url(url, "x") == url.rstrip("/")


@pytest.mark.parametrize("url", ["engine:8000", "ftp://engine", "http://", "http://h:99999", "http://h?x", "http://[h"])
def test_what_is_no_address_of_the_engine(url: str) -> None:
    with pytest.raises(ConfigurationError, match="wanted http://HOST:PORT"):
        check_url(url, "environment APPLIANCE_ENGINE_URL")


@pytest.mark.parametrize("url", ["http://u:secret@engine", "http://:secret@engine:8000", "u:secret@engine"])
def test_a_password_in_an_address_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError, match="x: engine_url holds a login; wanted http://HOST:PORT") as told:
        check_url(url, "x")
    assert "secret" not in str(told.value)
