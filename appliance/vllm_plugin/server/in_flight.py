"""ASGI middleware of vLLM's API server: counts requests in flight, beats, and refuses new ones while draining."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from appliance import paths, rundir
from appliance.rundir.phase import Phase
from appliance.vllm_plugin.progress.activity import ACTIVITY, Activity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping
    from pathlib import Path

    from appliance.rundir.heartbeat import Heartbeat

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Message, Receive, Send], Awaitable[None]]

BEAT_S = 1.0

RETRY_AFTER_S = 1
"""Another replica can answer at once; this one will not before it has been started again."""

INFERENCE = frozenset(
    {
        "/classify",
        "/inference/v1/generate",
        "/invocations",
        "/pooling",
        "/rerank",
        "/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
        "/v2/embed",
        "/v2/rerank",
    }
)
"""The POST paths of vLLM 0.19.1 that put work into the engine."""

logger = logging.getLogger("vllm.appliance.heartbeat")


class InFlight:
    """Pure ASGI, so that streaming, cancellation and disconnects pass untouched."""

    def __init__(self, app: Application, activity: Activity = ACTIVITY, run_dir: Path | None = None) -> None:
        self.app = app
        self.activity = activity
        self.run_dir = run_dir or paths.run_dir()
        self.draining = False
        self._failures = 0
        self._failure: str | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._with_beat(scope, receive, send)
        elif kind == "websocket" or (
            kind == "http"
            and scope["method"] == "POST"
            and scope["path"].removeprefix(scope.get("root_path", "")) in INFERENCE
        ):
            if self.draining:
                await _refuse(kind, send)
            else:
                await self._counted(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _counted(self, scope: Message, receive: Receive, send: Send) -> None:
        activity, request = self.activity, object()

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                # Only from here on is it the engine's turn: a client may upload as slowly as it likes.
                activity.awaiting[request] = rundir.clock()
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                activity.awaiting.pop(request, None)
            await send(message)

        socket = scope["type"] == "websocket"
        activity.in_flight += 1
        activity.sockets += socket
        try:
            await self.app(scope, receive if socket else received, send if socket else sent)
        finally:
            activity.in_flight -= 1
            activity.sockets -= socket
            activity.awaiting.pop(request, None)

    async def _with_beat(self, scope: Message, receive: Receive, send: Send) -> None:
        beating = asyncio.get_running_loop().create_task(self._beat())
        try:
            await self.app(scope, receive, send)
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating

    async def _beat(self) -> None:
        while True:
            # Composed on the loop, so that a blocked loop is seen; written off it, so that a slow disk blocks nothing.
            beat = self.activity.beat(rundir.clock(), os.getpid())
            self.draining = await asyncio.to_thread(self._exchange, beat)
            await asyncio.sleep(BEAT_S)

    def _exchange(self, beat: Heartbeat) -> bool:
        """Write the heartbeat and return whether the guardian wants the engine drained."""
        if beat.steps_record == "on" and beat.step_count and not (self.run_dir / rundir.STEPS).exists():
            beat = replace(beat, steps_record=f"off: {rundir.STEPS} is not there")
        try:
            replace(beat, missed_beats=self._failures, missed_because=self._failure).write(self.run_dir)
        except OSError as error:
            self._failures += 1
            if self._failure is None:
                logger.error("The heartbeat cannot be written, serving goes on: %s", error)
            self._failure = str(error)
        else:
            if self._failure is not None:
                logger.info("The heartbeat is written again")
                self._failure = None
        return (Phase.read(self.run_dir) or Phase()).phase == "draining"


async def _refuse(kind: str, send: Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": "shutting down"})
        return
    error = {"message": "The server is shutting down and takes no new requests.", "type": "draining", "code": 503}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", str(RETRY_AFTER_S).encode()),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
