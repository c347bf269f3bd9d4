"""The status page and what refreshes it: content, escaping, policy, revision."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance import paths, rundir
from appliance.acceleration import report
from appliance.acceleration.routes import ROUTES
from appliance.bench import run_directory
from appliance.cache.store import Store
from appliance.sidecar import view
from appliance.sidecar.app import create_app
from appliance.sidecar.gpus import Reading, Sample
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services
from appliance.topology import recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Get = Callable[..., httpx.Response]
    Put = Callable[..., None]

pytestmark = pytest.mark.usefixtures("complete_build")


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}"

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Tags, attributes and texts; complains of a tag that is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(get: Get) -> Callable[[], Page]:
    def load() -> Page:
        answer = get("/status")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        return Page(answer.text)

    return load


def test_it_shows_what_serves_and_why(page: Callable[[], Page], put: Put) -> None:
    states = {name: report.RouteState("enabled") for name in ROUTES}
    states["gdn_decode"] = report.RouteState("disabled", "selftest_failed:gdn_decode")
    plan = run_directory.plan()
    put(acceleration=report.report(plan["profile"], plan["expected_acceleration"], states))
    text = page().text
    for wanted in (
        "qwen3.8-27b",
        "degraded",
        "expected routes are off: gdn_decode (selftest_failed:gdn_decode)",
        "GPU 3 ✓",
        "NVLink joins every pair of GPUs",
        "qwen38_27b_fp8_c32",
        "fits, but qwen38_27b_nvfp4_dflash2 is preferred",
        "19 of 20 expected fast paths are on",
        "Last known",
        "http://127.0.0.1:8000",
    ):
        assert wanted in text
    rows = re.findall(r"disabled \(expected\) (\S+)", text)
    assert rows == ["selftest_failed:gdn_decode"]


def test_it_says_that_a_rehearsal_is_none_on_v100s(page: Callable[[], Page], put: Put) -> None:
    line = "rehearsal: vllm_platform sm70 runs a V100's kernels on NVIDIA H200"
    put(plan={**run_directory.plan(), "warnings": [line], "rehearsal": line})
    assert line in page().text


@pytest.mark.parametrize("name", ["plan", "acceleration", "heartbeat", "phase"])
@pytest.mark.parametrize("content", [None, "{}", "{", '{"gpus": 1}'])
def test_what_is_not_known_is_said_in_its_place(
    name: str, content: str | None, page: Callable[[], Page], put: Put, run_dir: Path
) -> None:
    put(**{name: None})
    if content is not None:
        files = {"plan": rundir.PLAN, "acceleration": rundir.ACCELERATION}
        (run_dir / files.get(name, rundir.HEARTBEAT if name == "heartbeat" else rundir.PHASE)).write_text(content)
    found = page()
    assert {attributes["id"] for attributes in found.all("h2")} >= {"health", "topology", "profile", "routes", "cache"}


def test_no_engine_at_all_is_a_page_too(page: Callable[[], Page], run_dir: Path) -> None:
    run_dir.rmdir()
    text = page().text
    assert "No engine yet" in text
    assert "there is no plan.json: the appliance has not started on this folder" in text


@pytest.mark.parametrize("topology", sorted(file.stem for file in paths.TOPOLOGIES.glob("*.json")))
def test_every_machine_has_its_drawing(topology: str, page: Callable[[], Page], put: Put) -> None:
    machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
    put(plan={"machine": machine.to_json(), "gpus": [gpu.index for gpu in machine.gpus][:2]})
    found = page()
    assert len([text for text in found.texts if text.strip().startswith("GPU ")]) >= len(machine.gpus)
    assert all(attributes["aria-label"] for attributes in found.all("svg"))


def test_whatever_the_records_say_is_text(get: Get, put: Put, run_dir: Path) -> None:
    # Kinds and states are words that the answers check; everything else may say what it likes.
    plan = json.loads(json.dumps(run_directory.plan()))
    keep = {"kind", "source"}

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoiled(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [spoiled(each, key) for each in value]
        return value + HOSTILE if isinstance(value, str) and key not in keep else value

    routes = {
        HOSTILE: {
            **dict.fromkeys(("title", "replaces", "switch", "reason", "source"), HOSTILE),
            "state": "disabled",
            "details": {},
        }
    }
    put(plan=spoiled(plan), acceleration={"routes": routes}, phase={"reason": HOSTILE, "phase": "loading"})
    rundir.write(run_dir, rundir.CACHE, {"enabled": True, "key": HOSTILE, "state": HOSTILE, "reason": HOSTILE})
    html = get("/status").text
    found = Page(html)
    assert f"qwen3.8-27b{HOSTILE}" in "".join(found.texts)
    assert len(found.all("script")) == 1
    assert found.all("img") == []
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert "49" not in re.findall(r"\{\{.*?\}\}|>49<", html)


def test_nothing_comes_from_elsewhere_and_the_policy_says_so(get: Get, put: Put) -> None:
    put()
    answer = get("/status")
    found = Page(answer.text)
    policy = answer.headers["content-security-policy"]
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    addresses = [
        value
        for _, attributes in found.tags
        for name, value in attributes.items()
        if name in ("src", "href", "action", "srcset", "xlink:href")
    ]
    assert all(address and (address.startswith(("/", "#")) or address == "data:,") for address in addresses)
    assert not [attributes for _, attributes in found.tags if "style" in attributes]


def test_it_can_be_read_by_everybody(page: Callable[[], Page], put: Put) -> None:
    put()
    found = page()
    assert [attributes.get("lang") for attributes in found.all("html")] == ["en"]
    for landmark in ("header", "main", "footer", "nav"):
        assert len(found.all(landmark)) == 1
    assert len(found.all("h1")) == 1
    assert all(attributes["scope"] in ("col", "row") for attributes in found.all("th"))
    assert len(found.all("caption")) == len(found.all("table"))
    ids = {attributes["id"] for _, attributes in found.tags if "id" in attributes}
    assert all(attributes["aria-labelledby"] in ids for attributes in found.all("section"))


@pytest.mark.parametrize(
    ("accept", "redirected"),
    [
        ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", True),
        ("TEXT/HTML", True),
        ("*/*", False),
        ("application/json, text/html", False),
        ("", False),
    ],
)
def test_a_browser_at_the_root_is_sent_to_the_page(accept: str, redirected: bool, run_dir: Path) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(Services(Options(run_dir))))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return await client.get("/", headers={"accept": accept})

    answer = asyncio.run(ask())
    assert answer.status_code == (307 if redirected else 200)
    assert answer.headers.get("location") == ("/status" if redirected else None)


def test_status_tells_rates(run_dir: Path, put: Put) -> None:
    services = Services(Options(run_dir))
    now = rundir.clock()
    for second in range(4):
        put(heartbeat={"at": now - 3 + second, "generation_tokens": 100 * second, "prompt_tokens": 0, "step": second})
        told = view.status(services)
    assert told.throughput.generation_tokens == pytest.approx(100, abs=0.1)
    assert told.throughput.course == pytest.approx([100, 100, 100], abs=0.1)
    assert told.shown["generation"] == "100.0"
    assert told.shown["running"] == "2"
    assert (told.running, told.phase) == (2, "ready")
    assert len(told.curve.split()) == 3


def test_status_of_nothing_is_unknown_not_zero(get: Get, run_dir: Path) -> None:
    run_dir.rmdir()
    told = get("/v1/status").json()
    assert told["phase"] == "dead"
    assert told["running"] is None
    assert told["throughput"]["generation_tokens"] is None
    assert {told["shown"][name] for name in ("generation", "kv", "step-age", "peak")} == {"–"}


def test_the_revision_changes_with_the_tables_and_not_with_the_figures(run_dir: Path, put: Put) -> None:
    services = Services(Options(run_dir, cache_dir=run_dir / "cache"))
    put()
    (run_dir / rundir.PLAN).touch()
    first = view.status(services).revision
    rundir.write(run_dir, rundir.HEARTBEAT, {"at": rundir.clock(), "step": 99, "running": 7})
    assert view.status(services).revision == first
    acceleration = rundir.read(run_dir, rundir.ACCELERATION)
    assert acceleration
    acceleration["routes"]["gdn_decode"] |= {"details": {"ranks": {"0": {"dispatched": 4}}}}
    rundir.write(run_dir, rundir.ACCELERATION, acceleration)
    assert view.status(services).revision == first
    acceleration["routes"]["gdn_decode"] |= {"state": "disabled", "reason": "kv_dtype"}
    rundir.write(run_dir, rundir.ACCELERATION, acceleration)
    second = view.status(services).revision
    assert second != first
    Store(run_dir / "cache").open("0" * 32, {}).close()
    services.cache.look()
    assert view.status(services).revision not in (first, second)


def test_the_gpus_figures_are_refreshed_in_place(run_dir: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    services = Services(Options(run_dir))
    hot = Reading(
        0, memory_used=12 << 30, memory_total=16 << 30, temperature=88, power=300, clock_sm=1.2e9,
        throttles={"thermal_hardware": True, "power_cap": False}, ecc={"corrected": 2}, link_errors={"replay": 1},
    )  # fmt: skip
    sample = Sample(0.0, (hot, Reading(1, problem="the GPU is lost")))
    monkeypatch.setattr(services.gpus, "latest", lambda: sample)
    shown = view.status(services).shown
    assert shown["gpu-0-memory"] == "12.0 GiB of 16.0 GiB"
    assert shown["gpu-0-temperature"] == "88 °C"
    assert shown["gpu-0-slowed"] == "thermal hardware"
    assert shown["gpu-0-errors"] == "3"
    assert (shown["gpu-1-slowed"], shown["gpu-1-power"]) == ("the GPU is lost", "–")
    places = re.findall(r'data-live="(gpu-[^"]+)"', view_html(services))
    assert set(places) == {name for name in shown if name.startswith("gpu-")}


def view_html(services: Services) -> str:
    from appliance.sidecar import status

    return status.template().render(view.page(services), css="", js="")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s ago"), (59.9, "59.9 s ago"), (61, "1 min ago"), (7260, "2 h 1 min ago")],
)
def test_ages_for_people(seconds: float | None, text: str) -> None:
    assert view._age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_for_people(value: float | None, text: str) -> None:
    assert view.size(value) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLANNED = ("gpus", "machine", "selection", "settings", "served_model_name", "title", "warnings", "versions", "memory")
TOLD = ("routes", "expected_acceleration", "missing", "enabled", "profile", "kernels", "more")
SAID = ("phase", "at", "since", "started", "budget_s", "stopped", "models", "reason", "progress")
ASKED = ("/status", "/v1/status", "/metrics", "/v1/cache", "/v1/sm70/acceleration", "/v1/topology", "/v1/profile")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    plan=st.dictionaries(st.sampled_from(PLANNED), JSON, max_size=2),
    acceleration=st.dictionaries(st.sampled_from(TOLD), JSON, max_size=2),
    phase=st.dictionaries(st.sampled_from(SAID), JSON, max_size=2),
    heartbeat=st.dictionaries(st.sampled_from(("at", "step", "generation_tokens", "running", "pid")), JSON, max_size=2),
    cache=st.dictionaries(st.sampled_from(("enabled", "key", "state", "reason", "sealed", "more")), JSON, max_size=4),
)
def test_whatever_the_records_hold_there_is_an_answer(
    plan: Any, acceleration: Any, phase: Any, heartbeat: Any, cache: Any, run_dir: Path, put: Put
) -> None:
    put(plan=plan, acceleration=acceleration, phase=phase, heartbeat=heartbeat)
    rundir.write(run_dir, rundir.CACHE, cache)
    app = create_app(Services(Options(run_dir, cache_dir=run_dir / "cache")))

    async def ask() -> dict[str, int]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return {path: (await client.get(path)).status_code for path in ASKED}

    found = asyncio.run(ask())
    assert (found["/status"], found["/v1/status"], found["/metrics"]) == (200, 200, 200)
    assert set(found.values()) <= {200, 503}


def test_a_machine_that_claims_a_million_links_is_drawn_all_the_same(get: Get, put: Put) -> None:
    machine = recorded.load(paths.TOPOLOGIES / "4xv100-sxm2-16gb.json").to_json()
    for row in machine["links"]:
        for link in row:
            link["nvlinks"] = 10**9 if link["kind"] == "nvlink" else 0
    put(plan={"machine": machine})
    assert len(Page(get("/status").text).all("line")) == 6 * 18
