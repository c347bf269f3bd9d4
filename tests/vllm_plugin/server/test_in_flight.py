"""The middleware around ASGI applications of every temper, and the beats it writes."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from appliance import rundir
from appliance.vllm_plugin.progress.activity import Activity
from appliance.vllm_plugin.server import in_flight
from appliance.vllm_plugin.server.in_flight import InFlight

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "BEAT_S", 0.01)


class Connection:
    """What a server gives to an application for one request, and what it got back."""

    def __init__(self, path: str = CHAT, method: str = "POST", kind: str = "http", **scope: Any) -> None:
        self.scope = {"type": kind, "path": path, **({"method": method} if kind == "http" else {}), **scope}
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []

    def upload(self, body: bytes = b"{}", *, more_body: bool = False) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more_body})

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        self.sent.append(message)


class Streaming:
    """Answers in pieces, each when it is told to."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (piece := await self.pieces.get()) is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.005)


def counts(activity: Activity) -> tuple[int, int]:
    return activity.in_flight, len(activity.awaiting)


def test_a_stream_awaits_until_its_first_byte_and_is_in_flight_until_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, app, request = Activity(), Streaming(), Connection()
        inner = asyncio.create_task(InFlight(app, activity, tmp_path)(request.scope, request.receive, request.send))
        await settle()
        assert counts(activity) == (1, 0), "nothing of the body has come yet"
        request.upload(b'{"prompt":', more_body=True)
        await settle()
        assert counts(activity) == (1, 0), "a slow upload is not the engine's"
        request.upload(b'"x"}')
        await settle()
        assert counts(activity) == (1, 1)
        app.pieces.put_nowait(b"")
        await settle()
        assert counts(activity) == (1, 1), "an empty piece is no byte"
        app.pieces.put_nowait(b"data: 1")
        await settle()
        assert counts(activity) == (1, 0)
        app.pieces.put_nowait(b"data: 2")
        app.pieces.put_nowait(None)
        await inner
        assert counts(activity) == (0, 0)
        assert [message.get("body") for message in request.sent] == [None, b"", b"data: 1", b"data: 2", b""]

    asyncio.run(scenario())


def test_the_oldest_of_many_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, app = Activity(), Streaming()
        counted = InFlight(app, activity, tmp_path)
        requests = [Connection() for _ in range(3)]
        tasks = [asyncio.create_task(counted(one.scope, one.receive, one.send)) for one in requests]
        for one in requests:
            one.upload()
            await settle()
        received = list(activity.awaiting.values())
        assert received == sorted(received)
        assert activity.beat(rundir.clock(), 1).oldest_awaiting_at == received[0]
        for _ in requests:
            app.pieces.put_nowait(None)
        await asyncio.gather(*tasks)
        assert activity.beat(rundir.clock(), 1).busy_since is None

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["raise", "cancel"])
def test_failing_and_cancelled_requests_are_counted_out(how: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, request = Activity(), Connection()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            if how == "raise":
                raise ValueError("no such model")
            await asyncio.sleep(3600)

        request.upload()
        inner = asyncio.create_task(InFlight(app, activity, tmp_path)(request.scope, request.receive, request.send))
        await settle()
        if how == "cancel":
            assert counts(activity) == (1, 1)
            inner.cancel()
        with pytest.raises(ValueError if how == "raise" else asyncio.CancelledError):
            await inner
        assert counts(activity) == (0, 0)

    asyncio.run(scenario())


def test_disconnects_reach_the_application(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, request = Activity(), Connection()
        seen: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.extend([(await receive())["type"], (await receive())["type"]])

        request.upload()
        request.incoming.put_nowait({"type": "http.disconnect"})
        await InFlight(app, activity, tmp_path)(request.scope, request.receive, request.send)
        assert seen == ["http.request", "http.disconnect"]
        assert counts(activity) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "method", "counted"),
    [
        (CHAT, "POST", True),
        ("/v1/responses", "POST", True),
        ("/root" + CHAT, "POST", True),
        (CHAT, "OPTIONS", False),
        ("/v1/models", "GET", False),
        ("/health", "GET", False),
        ("/tokenize", "POST", False),
        ("/v1/chat/completions/render", "POST", False),
    ],
)
def test_only_inference_is_counted(path: str, method: str, counted: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, request = Activity(), Connection(path, method, root_path="/root" if path.startswith("/root") else "")
        seen: dict[str, Any] = {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.update(in_flight=activity.in_flight, untouched=receive == request.receive and send == request.send)

        await InFlight(app, activity, tmp_path)(request.scope, request.receive, request.send)
        assert seen == {"in_flight": int(counted), "untouched": not counted}

    asyncio.run(scenario())


def test_a_websocket_is_in_flight_and_awaits_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity, request = Activity(running=1), Connection("/v1/realtime", kind="websocket")
        beats = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            beats.append(activity.beat(5.0, 1))

        await InFlight(app, activity, tmp_path)(request.scope, request.receive, request.send)
        assert (beats[0].in_flight, beats[0].sockets, beats[0].busy_since) == (1, 1, None)
        assert (activity.in_flight, activity.sockets) == (0, 0)

    asyncio.run(scenario())


@asynccontextmanager
async def served(app: InFlight) -> AsyncIterator[None]:
    """Hold the application's lifespan open, as a server does."""
    lifespan = Connection(kind="lifespan")
    task = asyncio.create_task(app(lifespan.scope, lifespan.receive, lifespan.send))
    try:
        yield
    finally:
        lifespan.incoming.put_nowait({"type": "lifespan.shutdown"})
        await task


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def beat_of(folder: Path) -> dict[str, Any]:
    return rundir.read(folder, rundir.HEARTBEAT) or {}


def test_beats_last_as_long_as_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity = Activity(step_count=7, step_at=3.0, running=2, steps_record="off: not asked for")
        async with served(InFlight(plain, activity, tmp_path)):
            await until(lambda: "at" in beat_of(tmp_path))
            first = beat_of(tmp_path)
            await until(lambda: beat_of(tmp_path)["at"] > first["at"])
        assert (first["step"], first["step_at"], first["running"]) == (7, 3.0, 2)
        assert first["steps_record"] == "off: not asked for"
        assert (first["missed_beats"], first["missed_because"]) == (0, None)
        assert 0 <= rundir.clock() - beat_of(tmp_path)["at"] < 30
        assert len(asyncio.all_tasks()) == 1, "no beat outlives the server"

    asyncio.run(scenario())


def test_a_blocked_loop_does_not_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with served(InFlight(plain, Activity(), tmp_path)):
            await until(lambda: "at" in beat_of(tmp_path))
            await asyncio.sleep(0)
            before = rundir.clock()
            while rundir.clock() - before < 0.2:
                pass
            assert beat_of(tmp_path)["at"] <= before + 0.01

    asyncio.run(scenario())


def test_draining_refuses_new_requests_and_finishes_running_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        stream, activity = Streaming(), Activity()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await (plain if scope["type"] == "lifespan" or scope["path"] == "/v1/models" else stream)(
                scope, receive, send
            )

        counted = InFlight(app, activity, tmp_path)
        async with served(counted):
            running = Connection()
            running.upload()
            task = asyncio.create_task(counted(running.scope, running.receive, running.send))
            await settle()
            rundir.write(tmp_path, rundir.PHASE, {"phase": "draining"})
            await until(lambda: counted.draining)

            refused = Connection("/v1/completions")
            await counted(refused.scope, refused.receive, refused.send)
            start, body = refused.sent
            assert start["status"] == 503
            headers = dict(start["headers"])
            assert headers[b"retry-after"] == b"1"
            assert int(headers[b"content-length"]) == len(body["body"])
            assert json.loads(body["body"])["error"] == {
                "message": "The server is shutting down and takes no new requests.",
                "type": "draining",
                "code": 503,
            }
            socket = Connection("/v1/realtime", kind="websocket")
            await counted(socket.scope, socket.receive, socket.send)
            assert socket.sent == [{"type": "websocket.close", "code": 1013, "reason": "shutting down"}]
            assert activity.in_flight == 1

            listing = Connection("/v1/models", "GET")
            listing.upload()
            await counted(listing.scope, listing.receive, listing.send)
            assert listing.sent[0]["status"] == 200, "only inference is refused"

            stream.pieces.put_nowait(b"the rest")
            stream.pieces.put_nowait(None)
            await task
            assert running.sent[1]["body"] == b"the rest"

            rundir.write(tmp_path, rundir.PHASE, {"phase": "ready"})
            await until(lambda: not counted.draining)

    asyncio.run(scenario())


def test_an_unwritable_run_directory_stops_no_request_and_is_told_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.write_text("a file where the folder should be")

    async def scenario() -> None:
        counted = InFlight(plain, Activity(), folder)
        async with served(counted):
            await until(lambda: counted._failures >= 3)
            request = Connection()
            request.upload()
            await counted(request.scope, request.receive, request.send)
            assert request.sent[0]["status"] == 200
            folder.unlink()
            folder.mkdir()
            await until(lambda: "at" in beat_of(folder))
            told = beat_of(folder)
            assert told["missed_beats"] >= 3
            assert "Not a directory" in told["missed_because"]
            await until(lambda: beat_of(folder)["missed_because"] is None)

    with caplog.at_level(logging.INFO, logger="vllm.appliance.heartbeat"):
        asyncio.run(scenario())
    assert [(entry.levelname, entry.message.partition(":")[0]) for entry in caplog.records] == [
        ("ERROR", "The heartbeat cannot be written, serving goes on"),
        ("INFO", "The heartbeat is written again"),
    ]


def test_a_step_record_that_is_not_there_is_not_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        activity = Activity(step_count=3, steps_record="on")
        async with served(InFlight(plain, activity, tmp_path)):
            await until(lambda: "at" in beat_of(tmp_path))
            assert beat_of(tmp_path)["steps_record"] == "off: steps.jsonl is not there"
            (tmp_path / rundir.STEPS).touch()
            await until(lambda: beat_of(tmp_path)["steps_record"] == "on")

    asyncio.run(scenario())


def test_a_server_whose_start_fails_ends_its_beat(tmp_path: Path) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no port")

    async def scenario() -> None:
        with suppress(RuntimeError):
            async with served(InFlight(failing, Activity(), tmp_path)):
                pass
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


class TestBusySince:
    """`busy_since` is null exactly when there is nothing to do."""

    def test_requests_held_by_the_engine_count_from_the_first_beat_that_saw_them(self) -> None:
        activity = Activity(in_flight=1, running=1)
        assert activity.beat(10.0, 1).busy_since == 10.0
        assert activity.beat(11.0, 1).busy_since == 10.0
        activity.running = 0
        assert activity.beat(12.0, 1).busy_since is None
        activity.waiting = 1
        assert activity.beat(13.0, 1).busy_since == 13.0

    def test_the_older_of_both_kinds_of_work_counts(self) -> None:
        activity = Activity(in_flight=2, running=1)
        activity.beat(10.0, 1)
        activity.awaiting = {object(): 4.0, object(): 6.0}
        assert activity.beat(11.0, 1).busy_since == 4.0

    def test_a_run_of_refused_requests_never_ages(self) -> None:
        activity = Activity()
        for now in range(1000):
            activity.awaiting = {object(): now - 0.001}
            assert activity.beat(float(now), 1).busy_since == now - 0.001

    def test_running_requests_that_nobody_waits_for_are_no_work(self) -> None:
        assert Activity(running=1).beat(10.0, 1).busy_since is None
