"""A fake OpenAI server that streams, fails, lies and falls silent as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Behave = Callable[["Reply"], Awaitable[None]]

MODEL = "qwen3.8-27b"
KEY = "sk-right"
TEMPLATE_TOKENS = 9


def tokens_of(text: str) -> list[int]:
    """A tokenizer: a long word is two tokens, a text begins with a special one."""
    return [1, *(token for word in text.split() for token in ([len(word) + 10] if len(word) < 6 else [2, 3]))]


class Reply:
    """One request and the stream that answers it."""

    def __init__(self, request: web.Request, body: dict[str, Any], number: int) -> None:
        self.request = request
        self.body = body
        self.number = number
        self.asked = int(body.get("max_tokens") or body.get("max_completion_tokens") or 0)
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.sent = 0

    @property
    def prompt_tokens(self) -> int:
        if "messages" in self.body:
            return len(tokens_of(self.body["messages"][0]["content"])) + TEMPLATE_TOKENS
        prompt = self.body["prompt"]
        return len(prompt) if isinstance(prompt, list) else len(tokens_of(prompt))

    async def event(self, record: Any) -> None:
        text = record if isinstance(record, str) else json.dumps(record)
        await self.response.write(f"data: {text}\n\n".encode())

    async def tokens(self, count: int, *, finish: str | None = None, ids: bool = True) -> None:
        """One chunk."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "token_ids": [7] * count if ids else None}
        choice |= {"delta": {"content": "x " * count}} if "messages" in self.body else {"text": "x " * count}
        self.sent += count
        await self.event({"choices": [choice]})
        await asyncio.sleep(0.002)

    def usage(self, **changes: Any) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.sent, **changes}

    async def end(self, **usage: Any) -> None:
        await self.event({"choices": [], "usage": self.usage(**usage)})
        await self.event("[DONE]")


async def good(reply: Reply) -> None:
    """A token a chunk."""
    for left in range(reply.asked - 1, -1, -1):
        await reply.tokens(1, finish=None if left else "length")
    await reply.end()


class Server:
    """Answers as `behave` does; `bodies` are the requests it got."""

    def __init__(self, behave: Behave, *, key: str | None = None, max_model_len: int = 4096) -> None:
        self.behave = behave
        self.key = key
        self.max_model_len = max_model_len
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._at_once = 0
        self.url = ""
        self.whole: Callable[[list[dict[str, Any]], dict[str, Any]], Awaitable[web.Response]] | None = None
        """What answers a request that does not stream."""

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)  # type: ignore[no-any-return]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": self.max_model_len}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            found = [0] * TEMPLATE_TOKENS + tokens_of(body["messages"][0]["content"])
        else:
            found = tokens_of(body["prompt"])
        return web.json_response({"tokens": found, "count": len(found)})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.whole is not None and not body["stream"]:
            return await self.whole(self.bodies, body)
        reply = Reply(request, body, len(self.bodies))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await reply.response.prepare(request)
            await self.behave(reply)
        except web.HTTPException:
            raise
        except ConnectionError:
            pass
        finally:
            self._at_once -= 1
        return reply.response

    def application(self) -> web.Application:
        made = web.Application(middlewares=[self._guard], client_max_size=1 << 28)
        made.router.add_get("/v1/models", self._models)
        made.router.add_post("/tokenize", self._tokenize)
        for path in ("/v1/completions", "/v1/chat/completions"):
            made.router.add_post(path, self._generate)
        return made


class RefusingServer(Server):
    """Answers every generation with a status."""

    def __init__(self, status: int, text: str = "broken", **options: Any) -> None:
        super().__init__(good, **options)
        self.status = status
        self.text = text

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return web.Response(status=self.status, text=self.text)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run it in a thread, on a free port, while the context lasts."""
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(server.application(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(LIMIT_S)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()
