"""/v1/cache over a real store: who may write, what is in use, one job at a time, and health meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance import rundir
from appliance.cache.key import key_of
from appliance.cache.store import Store
from appliance.sidecar import cache as endpoints
from appliance.sidecar import cache_jobs, guard
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.cache.store import Lease

TOKEN = "t0ken-of-the-test-long-enough"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
NOBODYS = "0" * 32
PATIENT_S = 60.0


class Asker:
    """The application over one cache, and what is asked of it."""

    def __init__(self, folder: Path, token: str | None = TOKEN) -> None:
        self.folder = folder / "cache"
        self.run_dir = folder / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.services = Services(Options(self.run_dir, cache_dir=self.folder, token=token))
        self.app = create_app(self.services)

    def __call__(self, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://sidecar:8001") as client:
                return await client.request(method, path, headers=RIGHT if headers is None else headers, **more)

        return asyncio.run(ask())

    def made(self, name: str, *, sealed: bool = True, size: int = 1000) -> Lease:
        """A generation, still in use."""
        parts = {"image": name}
        lease = Store(self.folder).open(key_of(parts), parts)
        (lease.folder / "inductor" / f"{name}.so").write_bytes(b"x" * size)
        if sealed:
            assert lease.seal([1, 2]).sealed
        return lease

    def unused(self, name: str, **more: Any) -> str:
        lease = self.made(name, **more)
        lease.close()
        self.services.cache.latest = None
        return lease.key


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a small job may take longer than a person waits for an answer."""
    monkeypatch.setattr(endpoints, "AT_ONCE_S", PATIENT_S)


@pytest.fixture
def ask(tmp_path: Path) -> Asker:
    return Asker(tmp_path)


@pytest.fixture
def held(ask: Asker) -> Iterator[Lease]:
    with ask.made("held") as lease:
        yield lease


def test_what_is_there(ask: Asker, held: Lease) -> None:
    other = ask.unused("other", sealed=False, size=500)
    rundir.write(ask.run_dir, rundir.CACHE, {"enabled": True, "key": held.key, "state": "cold", "reason": "new"})
    body = ask("GET", "/v1/cache", {}).json()
    found = {one["key"]: one for one in body["generations"]}
    assert found.keys() == {held.key, other}
    assert (found[held.key]["state"], found[held.key]["in_use"], found[held.key]["current"]) == ("sealed", True, True)
    assert (found[other]["state"], found[other]["in_use"], found[other]["current"]) == ("building", False, False)
    assert found[held.key]["parts"] == {"image": "held"}
    assert body["size_bytes"] == sum(one["size_bytes"] for one in body["generations"]) >= 1500
    assert 0 < body["disk_free_bytes"] <= body["disk_total_bytes"]
    assert body["start"]["state"] == "cold"
    assert body["writable"] is True
    assert body["job"] is None


def test_an_empty_cache_is_no_error(ask: Asker) -> None:
    body = ask("GET", "/v1/cache", {}).json()
    assert (body["generations"], body["start"], body["size_bytes"]) == ([], None, 0)


def test_the_plan_names_the_folder_where_nobody_else_does(tmp_path: Path) -> None:
    ask = Asker(tmp_path)
    ask.services = Services(Options(ask.run_dir))
    ask.app = create_app(ask.services)
    assert ask("GET", "/v1/cache", {}).status_code == 503
    rundir.write(ask.run_dir, rundir.PLAN, {"settings": {"cache_dir": {"value": str(ask.folder)}}})
    ask.services.cache.latest = None
    assert ask("GET", "/v1/cache", {}).json()["folder"] == str(ask.folder)


def test_a_cache_that_is_no_folder_is_said(ask: Asker) -> None:
    ask.folder.write_text("")
    answer = ask("GET", "/v1/cache", {})
    assert answer.status_code == 503
    assert str(ask.folder) in answer.json()["reason"]


def test_a_generation_is_removed(ask: Asker) -> None:
    key = ask.unused("old")
    answer = ask("DELETE", f"/v1/cache/{key}")
    assert answer.status_code == 200
    assert answer.json()["result"] == {"key": key, "size_bytes": answer.json()["result"]["size_bytes"], "why": "asked"}
    assert 'appliance_cache_generations{state="sealed"} 0.0' in ask("GET", "/metrics", {}).text
    assert ask("GET", "/v1/cache", {}).json()["generations"] == []
    assert ask("DELETE", f"/v1/cache/{key}").status_code == 404


@pytest.mark.parametrize("how", ["DELETE", "seal", "prune"])
def test_the_generation_in_use_is_never_touched(how: str, ask: Asker, held: Lease) -> None:
    before = sorted(file.name for file in held.folder.rglob("*"))
    if how == "DELETE":
        answer = ask("DELETE", f"/v1/cache/{held.key}")
    elif how == "seal":
        answer = ask("POST", "/v1/cache/seal", json={"key": held.key})
    else:
        answer = ask("POST", "/v1/cache/prune", json={"max_age_s": 0, "max_bytes": 0})
    if how == "prune":
        assert answer.json()["result"] == []
    else:
        assert answer.status_code == 409
        assert answer.json()["reason"] == f"generation {held.key} is in use by an engine"
    assert sorted(file.name for file in held.folder.rglob("*")) == before


def test_the_running_engines_generation_stays_even_where_its_lock_is_not_seen(ask: Asker) -> None:
    # A volume over the network may not carry locks from one machine to the other.
    key = ask.unused("running")
    rundir.write(ask.run_dir, rundir.CACHE, {"enabled": True, "key": key})
    assert ask("DELETE", f"/v1/cache/{key}").status_code == 409
    assert ask("POST", "/v1/cache/prune", json={"max_bytes": 0}).json()["result"] == []


def test_pruning_by_size_and_dry(ask: Asker) -> None:
    key = ask.unused("one")
    dry = ask("POST", "/v1/cache/prune", json={"max_bytes": 0, "dry_run": True})
    assert [one["key"] for one in dry.json()["result"]] == [key]
    assert len(ask("GET", "/v1/cache", {}).json()["generations"]) == 1
    assert ask("POST", "/v1/cache/prune", json={}).json()["result"] == []
    assert ask("POST", "/v1/cache/prune", json={"max_bytes": 0}).json()["result"][0]["why"] == "size"
    assert ask("GET", "/v1/cache", {}).json()["generations"] == []


def test_verifying_tells_the_bad_file(ask: Asker) -> None:
    good, bad = ask.unused("good"), ask.unused("bad")
    assert ask("POST", "/v1/cache/verify", json={}).json()["result"] == {good: [], bad: []}
    file = next((ask.folder / "generations" / bad).rglob("bad.so"))
    content = bytearray(file.read_bytes())
    content[10] ^= 1
    file.write_bytes(content)
    body = ask("POST", "/v1/cache/verify", json={"key": bad}).json()
    assert [problem["file"] for problem in body["result"][bad]] == ["inductor/bad.so"]
    assert body["total_bytes"] >= body["done_bytes"] > 0


def test_what_is_not_sealed_cannot_be_verified(ask: Asker) -> None:
    key = ask.unused("building", sealed=False)
    answer = ask("POST", "/v1/cache/verify", json={"key": key})
    assert answer.status_code == 409
    assert "is not sealed" in answer.json()["reason"]


def test_sealing_by_hand_is_refused_where_nobody_knows_that_it_is_whole(ask: Asker) -> None:
    key = ask.unused("building", sealed=False)
    answer = ask("POST", "/v1/cache/seal", json={"key": key})
    assert answer.status_code == 409
    assert "not known to be whole" in answer.json()["reason"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"/v1/cache/{NOBODYS}", None),
        ("POST", "/v1/cache/verify", {"key": NOBODYS}),
        ("POST", "/v1/cache/seal", {"key": NOBODYS}),
    ],
)
def test_a_key_that_is_nobodys(method: str, path: str, body: Any, ask: Asker) -> None:
    answer = ask(method, path, json=body)
    assert answer.status_code == 404
    assert answer.json()["reason"] == f"there is no generation {NOBODYS}; GET /v1/cache lists them"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/v1/cache/..", None),
        ("DELETE", "/v1/cache/%2e%2e%2fetc", None),
        ("DELETE", f"/v1/cache/{'A' * 32}", None),
        ("DELETE", f"/v1/cache/{NOBODYS}%0a", None),
        ("POST", "/v1/cache/seal", {"key": "../../etc"}),
        ("POST", "/v1/cache/seal", {}),
        ("POST", "/v1/cache/verify", {"key": 3}),
        ("POST", "/v1/cache/prune", {"max_age_s": -1}),
        ("POST", "/v1/cache/prune", {"max_age_s": 1.5}),
        ("POST", "/v1/cache/prune", {"max_bytez": 1}),
        ("POST", "/v1/cache/prune", [1]),
    ],
)
def test_what_is_not_understood_says_so(method: str, path: str, body: Any, ask: Asker) -> None:
    answer = ask(method, path, json=body)
    assert answer.status_code in (404, 422)
    assert answer.json().keys() == {"reason"}


WRITES = [
    ("POST", "/v1/cache/prune"),
    ("POST", "/v1/cache/verify"),
    ("POST", "/v1/cache/seal"),
    ("DELETE", f"/v1/cache/{NOBODYS}"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_without_a_token_nothing_is_written_and_the_way_is_told(method: str, path: str, tmp_path: Path) -> None:
    ask = Asker(tmp_path, token=None)
    for headers in ({}, RIGHT):
        answer = ask(method, path, headers)
        assert answer.status_code == 403
        assert "APPLIANCE_SIDECAR_TOKEN_FILE" in answer.json()["reason"]
    assert ask("GET", "/v1/cache", {}).json()["writable"] is False


WRONG: list[dict[str, str]] = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {TOKEN}"},
    {"authorization": TOKEN},
    {"authorization": f"Bearer {TOKEN}x"},
    {"authorization": f"Bearer {TOKEN[:-1]}"},
    {"authorization": f"Bearer {TOKEN.upper()}"},
]


@pytest.mark.parametrize("headers", WRONG)
@pytest.mark.parametrize(("method", "path"), WRITES)
def test_a_wrong_token_is_refused_and_logged_without_it(
    headers: dict[str, str], method: str, path: str, ask: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = ask(method, path, headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "192.0.2.7" in caplog.text
    assert "refused" in caplog.text
    assert TOKEN.lower() not in caplog.text.lower()
    assert "wrong\n" not in caplog.text


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    authorization=st.one_of(
        st.binary(max_size=64).filter(lambda b: not set(b) & {0, 10, 13}),
        st.text(alphabet="Bearer abct0kenofhs-\t", max_size=60).map(str.encode),
    ),
    origin=st.none() | st.text(alphabet="htps:/.[]@%a1", max_size=20),
)
def test_no_header_writes_or_breaks(authorization: bytes, origin: str | None, ask: Asker) -> None:
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/cache/prune",
        "headers": [(b"host", b"sidecar"), (b"authorization", authorization)],
        "client": None,
    }
    if origin is not None:
        scope["headers"].append((b"origin", origin.encode()))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def inner(*_: Any) -> None:
        raise AssertionError("passed")

    async def receive() -> Any:
        raise AssertionError("read")

    asyncio.run(guard.WriteGuard(inner, TOKEN)(scope, receive, send))
    assert sent[0]["status"] in (401, 403)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"origin": "http://sidecar:8001"}, False),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "http://sidecar:8002"}, True),
        ({"origin": "null"}, True),
        ({"origin": "file://sidecar:8001"}, True),
        ({"origin": "http://[::1"}, True),
        # A stranger's name that its DNS points at this machine: Origin and Host agree.
        ({"origin": "http://rebound.example:8001", "host": "rebound.example:8001"}, True),
        ({"origin": "http://127.0.0.1:8001", "host": "127.0.0.1:8001"}, False),
        ({"origin": "http://[::1]:8001", "host": "[::1]:8001"}, False),
        ({"origin": "https://localhost", "host": "localhost"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"host": "sidecar.namespace.svc"}, False),
    ],
)
def test_no_page_of_another_site_writes(headers: dict[str, str], foreign: bool, ask: Asker) -> None:
    answer = ask("POST", "/v1/cache/prune", {**RIGHT, **headers}, json={})
    assert answer.status_code == (403 if foreign else 200)
    assert "access-control-allow-origin" not in answer.headers


def test_no_browser_is_told_that_it_may_ask_from_elsewhere(ask: Asker) -> None:
    preflight = {"origin": "http://evil.example", "access-control-request-method": "DELETE"}
    answer = ask("OPTIONS", f"/v1/cache/{NOBODYS}", preflight)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_body_that_is_too_large_is_not_kept(ask: Asker) -> None:
    answer = ask("POST", "/v1/cache/prune", content=b" " * (guard.LARGEST_BODY + 1))
    assert answer.status_code == 413
    assert ask("POST", "/v1/cache/prune", content=b"{}" + b" " * (guard.LARGEST_BODY - 2)).status_code in (200, 422)


def test_a_body_that_does_not_come_is_not_waited_for(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.1)

    async def drip() -> Any:
        yield b"{"
        await asyncio.sleep(60)

    assert ask("POST", "/v1/cache/prune", content=drip()).status_code == 408


def test_one_job_at_a_time_its_progress_and_health_meanwhile(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ask.unused("large")
    monkeypatch.setattr(endpoints, "AT_ONCE_S", 0.05)
    going = threading.Event()

    def slowly(self: Store, key: str, seen: Any) -> list[Any]:
        seen(7)
        assert going.wait(60)
        return []

    monkeypatch.setattr(Store, "verify", slowly)
    answer = ask("POST", "/v1/cache/verify", json={"key": key})
    assert answer.status_code == 202
    assert answer.json()["state"] == "running"
    job = ask("GET", "/v1/cache", {}).json()["job"]
    assert (job["action"], job["key"], job["state"], job["done_bytes"]) == ("verify", key, "running", 7)
    for method, path, body in (
        ("POST", "/v1/cache/verify", {}),
        ("POST", "/v1/cache/prune", {}),
        ("DELETE", f"/v1/cache/{key}", None),
    ):
        busy = ask(method, path, json=body)
        assert busy.status_code == 409
        assert busy.json()["reason"].startswith("verify has been under way for ")
    assert ask("GET", "/health/live", {}).status_code == 503
    going.set()
    end = time.monotonic() + 30
    while (job := ask("GET", "/v1/cache", {}).json()["job"])["state"] == "running":
        assert time.monotonic() < end
    assert (job["state"], job["result"]) == ("done", {key: []})
    monkeypatch.setattr(endpoints, "AT_ONCE_S", PATIENT_S)
    assert ask("DELETE", f"/v1/cache/{key}").status_code == 200


def test_a_job_steps_back_for_the_answers(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ask.unused("any")
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen: list[int] = []

    def look(*_: Any) -> list[Any]:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return []

    monkeypatch.setattr(Store, "verify", look)
    assert ask("POST", "/v1/cache/verify", json={"key": key}).status_code == 200
    assert seen == [cache_jobs.STEP_BACK]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_a_disk_that_refuses_is_told(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ask.unused("old")

    def full(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Store, "remove", full)
    answer = ask("DELETE", f"/v1/cache/{key}")
    assert (answer.status_code, answer.json()) == (409, {"reason": "the disk refuses: Read-only file system"})


def test_a_job_that_breaks_tells_nothing_of_the_inside(
    ask: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = ask.unused("old")

    def broken(*_: Any) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(Store, "remove", broken)
    answer = ask("DELETE", f"/v1/cache/{key}")
    assert "secret" not in answer.text
    assert ask("GET", "/v1/cache", {}).json()["job"]["state"] == "failed"
    assert "cache: remove failed" in caplog.text
