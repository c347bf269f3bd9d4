"""The API key on paths that vLLM leaves open."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from appliance.vllm_plugin.server import api_key
from appliance.vllm_plugin.server.authentication import KeyOnEveryPath

pytestmark = pytest.mark.engine


def client() -> httpx.AsyncClient:
    inner = Starlette(
        routes=[
            Route(path, lambda _: PlainTextResponse("answered"), methods=["GET", "POST"])
            for path in ("/invocations", "/tokenize", "/health", "/metrics", "/v1/models", "/v1/sm70/acceleration")
        ]
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(KeyOnEveryPath(inner)), base_url="http://engine")


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/invocations", None, 401),
        ("/tokenize", "Bearer wrong", 401),
        ("/invocations", "Basic secret", 401),
        ("/invocations", "Bearer secret", 200),
        ("/tokenize", "bearer secret", 200),
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/v1/sm70/acceleration", None, 401),
        ("/v1/sm70/acceleration", "Bearer secret", 200),
        ("/v1/models", None, 200),  # vLLM's own guard stands before this one
    ],
)
@pytest.mark.filterwarnings("ignore")  # importing vLLM warns of what it will
def test_a_key_is_asked_for(monkeypatch: pytest.MonkeyPatch, path: str, authorization: str | None, status: int) -> None:
    import asyncio

    monkeypatch.setenv("VLLM_API_KEY", "secret")

    async def ask() -> httpx.Response:
        async with client() as http:
            return await http.post(path, headers={"authorization": authorization} if authorization else {})

    assert asyncio.run(ask()).status_code == status


def test_without_a_key_everything_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    async def ask() -> httpx.Response:
        async with client() as http:
            return await http.post("/invocations")

    assert asyncio.run(ask()).status_code == 200


def test_a_key_that_left_the_environment_still_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(api_key, "_taken", None)
    environ = {"VLLM_API_KEY": "secret", "PATH": "/bin"}
    assert api_key.take(environ) == "secret"
    assert environ == {"PATH": "/bin"}
    assert api_key.held(environ) == "secret"
    monkeypatch.delenv("VLLM_API_KEY", raising=False)

    async def ask() -> list[int]:
        async with client() as http:
            keys = ("Bearer secret", "Bearer wrong")
            return [(await http.post("/invocations", headers={"authorization": key})).status_code for key in keys]

    assert asyncio.run(ask()) == [200, 401]
