"""The status page in a real Chromium: content, refresh, no outside request, phone width, dark mode, hostile names."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.remote.command import Command

from appliance import paths, rundir
from appliance.acceleration import report
from appliance.acceleration.routes import ROUTES
from appliance.bench import run_directory
from appliance.cache.key import key_of
from appliance.cache.store import Store
from appliance.sidecar import server
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services
from appliance.topology import recorded
from tests.requirement import required
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    Put = Callable[..., None]

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("complete_build")]

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"

FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    required("browser")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


class Sidecar:
    """The real application on a real port, over a run directory that a test writes."""

    def __init__(self, run_dir: Path) -> None:
        self.services = Services(Options(run_dir, cache_dir=run_dir / "cache"))
        self.listener = server.listen("127.0.0.1", 0)
        self.url = server.url(self.listener)
        self.server = server.prepared(create_app(self.services))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.server.should_exit = True
            self.thread.join()
            self.listener.close()


@pytest.fixture
def sidecar(run_dir: Path) -> Iterator[Sidecar]:
    running = Sidecar(run_dir)
    yield running
    running.stop()


def opened(chromium: Chrome, url: str, *, width: int = 1100, dark: bool = False) -> None:
    chromium.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for kind in ("browser", "performance"):
        logged(chromium, kind)
    chromium.get(url)


def text(chromium: Chrome, selector: str = "body") -> str:
    found: str = chromium.execute_script("return document.querySelector(arguments[0]).innerText", selector)
    return found


def logged(chromium: Chrome, kind: str) -> list[dict[str, Any]]:
    """What was logged since it was last asked for; Chrome.get_log, which has no types."""
    entries: list[dict[str, Any]] = chromium.execute(Command.GET_LOG, {"type": kind})["value"]
    return entries


def asked(chromium: Chrome) -> set[str]:
    """The addresses of every request of the page."""
    events = (json.loads(entry["message"])["message"] for entry in logged(chromium, "performance"))
    return {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}


def contrast(chromium: Chrome, selector: str) -> float:
    """The contrast of a text with the nearest ground behind it, as WCAG 2 defines it."""
    script = """
        let element = document.querySelector(arguments[0]);
        const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
        const text = numbers(getComputedStyle(element).color);
        let ground;
        do {
            ground = numbers(getComputedStyle(element).backgroundColor);
            element = element.parentElement;
        } while (ground.length === 4 && ground[3] === 0 && element);
        return [text.slice(0, 3), ground.slice(0, 3)];
    """
    light, dark = sorted(map(luminance, chromium.execute_script(script, selector)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: list[float]) -> float:
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (each / 255 for each in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def degraded() -> dict[str, Any]:
    plan = run_directory.plan()
    states = {name: report.RouteState("enabled") for name in ROUTES}
    states["gdn_decode"] = report.RouteState("disabled", "selftest_failed:gdn_decode")
    return report.report(plan["profile"], plan["expected_acceleration"], states)


def test_everything_is_on_the_page_and_nothing_from_elsewhere(
    chromium: Chrome, sidecar: Sidecar, put: Put, run_dir: Path
) -> None:
    put(acceleration=degraded())
    parts = {"image": "x"}
    with Store(run_dir / "cache").open(key_of(parts), parts) as lease:
        lease.seal([1])
        rundir.write(run_dir, rundir.CACHE, {"enabled": True, "key": lease.key, "state": "warm", "reason": "verified"})
        opened(chromium, sidecar.url)
        assert chromium.current_url == f"{sidecar.url}/status"
        shown = text(chromium)
    for wanted in (
        "qwen3.8-27b",
        "expected routes are off: gdn_decode (selftest_failed:gdn_decode)",
        "19 of 20 expected fast paths are on",
        "fits, but qwen38_27b_nvfp4_dflash2 is preferred",
        "This start was warm: verified",
        key_of(parts),
        "GPUs 0, 1, 2, 3 joined by NVLink",
    ):
        assert wanted in shown
    assert text(chromium, "#phase") == "degraded"
    assert chromium.execute_script("return document.querySelectorAll('svg.board .gpu.chosen').length") == 4
    assert chromium.execute_script("return document.querySelectorAll('svg.board line').length") == 12
    assert chromium.execute_script("return document.querySelector('svg.board').getBoundingClientRect().width") > 200
    assert all(url.startswith((sidecar.url, "data:")) for url in asked(chromium))
    assert logged(chromium, "browser") == []


def test_figures_refresh_and_the_tables_follow(chromium: Chrome, sidecar: Sidecar, put: Put, run_dir: Path) -> None:
    put()
    opened(chromium, f"{sidecar.url}/status")
    assert text(chromium, "#phase") == "ready"
    assert text(chromium, "[data-live=generation]") == "–"
    now = rundir.clock()
    for second in (1, 2):
        beat = {"at": now - 3 + second, "generation_tokens": 1000 * second, "step": second, "prompt_tokens": 0}
        rundir.write(run_dir, rundir.HEARTBEAT, {**run_directory.ready(now)[rundir.HEARTBEAT], **beat})
        sidecar.services.history.sample()
    until(lambda: text(chromium, "[data-live=generation]") == "1,000.0")
    put(acceleration=degraded())
    until(lambda: "19 of 20 expected fast paths are on" in text(chromium))
    assert "degraded" in chromium.execute_script("return document.getElementById('phase').className")
    assert logged(chromium, "browser") == []


def test_a_sidecar_that_is_gone_is_said(chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    put()
    opened(chromium, f"{sidecar.url}/status")
    sidecar.stop()
    until(lambda: "The sidecar does not answer" in text(chromium, "#banner"))
    assert chromium.execute_script("return document.getElementById('banner').hidden") is False


@pytest.mark.parametrize("topology", ["4xv100-sxm2-16gb", "8xv100-dgx1", "none"])
@pytest.mark.parametrize("width", [320, 375, 768])
def test_no_width_scrolls_sideways(width: int, topology: str, chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
    put(acceleration=degraded(), plan={"machine": machine.to_json(), "served_model_name": "m" * 300})
    opened(chromium, f"{sidecar.url}/status", width=width)
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    wide = (
        "return [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    )
    assert [element.tag_name for element in chromium.execute_script(wide)] == []
    assert chromium.execute_script("return parseFloat(getComputedStyle(document.body).fontSize)") >= 16


TEXTS = (
    "h1",
    "h2",
    ".over",
    ".soft",
    ".lead",
    "dt",
    "dd",
    ".big dd",
    "caption",
    "th code",
    ".phase",
    "footer",
    "a[href]",
)
STATES = (".state.enabled", ".state.missed", ".warning")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("phase", ["ready", "loading", "dead"])
def test_light_and_dark_can_be_read(dark: bool, phase: str, chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    put(acceleration=degraded(), phase={"phase": phase, "reason": "because"})
    opened(chromium, f"{sidecar.url}/status", dark=dark)
    ground = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(ground.removeprefix("rgb(").partition(",")[0])
    assert red < 64 if dark else red > 192
    poor = {each: ratio for each in (*TEXTS, *STATES) if (ratio := contrast(chromium, each)) < 4.5}
    assert poor == {}


def test_a_hostile_name_is_a_name(chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    put(plan={"served_model_name": HOSTILE, "title": HOSTILE}, phase={"phase": "loading", "reason": HOSTILE})
    opened(chromium, f"{sidecar.url}/status")
    assert text(chromium, "h1") == HOSTILE
    until(lambda: f"{sidecar.url}/v1/status" in asked(chromium))
    assert HOSTILE in text(chromium, "[data-live=reason]")
    assert chromium.title == f"loading – {HOSTILE}"
    assert chromium.execute_script("return document.images.length") == 0
    assert logged(chromium, "browser") == []


def test_the_policy_stops_what_escaping_would_miss(chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    put()
    opened(chromium, f"{sidecar.url}/status")
    chromium.execute_script(
        "const s = document.createElement('script'); s.textContent = 'document.title = \"owned\"';"
        "document.body.append(s);"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x'; document.body.append(i);"
    )
    until(lambda: any("Content Security Policy" in entry["message"] for entry in logged(chromium, "browser")))
    assert chromium.title.startswith("ready")


def test_it_works_by_keyboard_and_has_names_for_a_screen_reader(chromium: Chrome, sidecar: Sidecar, put: Put) -> None:
    put()
    opened(chromium, f"{sidecar.url}/status", width=375)
    tree = chromium.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = [node["role"]["value"] for node in tree if not node["ignored"]]
    assert {"banner", "main", "contentinfo", "navigation", "table", "columnheader", "rowheader"} <= set(roles)
    images = [node for node in tree if not node["ignored"] and node["role"]["value"] in ("image", "img")]
    assert images
    assert all(node["name"]["value"] for node in images)
