"""The results' page in a real browser: drawn, nothing fetched, nothing cut off, on a screen and on a telephone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bench import report_page
from tests.bench import bench_samples as samples
from tests.requirement import required

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("complete_build")]

MODEL = {
    "predictions": [
        {"m": 32, "part": part, "launches_a_step": 64, "us": 84.5 - n, "roofline_us": 55.9 - n, "bound": "tensor"}
        for n, part in enumerate(("gate_up", "down", "qkv_gate", "attention_out", "gdn_in"))
    ]
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    required("browser")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    results = [samples.decoded(8, 2048, 400.0), samples.decoded(32, 2048, 1085.0), samples.screened()]
    file = tmp_path / "report.html"
    file.write_text(report_page.page(results, MODEL), encoding="utf-8")
    browser.set_window_size(1200, 900)
    browser.get(file.as_uri())
    return browser


@pytest.mark.timeout(180)
def test_the_page_is_drawn_whole(opened: Any, tmp_path: Path) -> None:
    plots = opened.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => { const r = s.getBoundingClientRect();"
        " return [r.width, r.height, s.querySelectorAll('path').length, s.querySelectorAll('text').length]; })"
    )
    assert len(plots) == 1 + 2 + 1 + 1, "throughput by concurrency, two of steps, one of latencies, the kernels"
    for width, height, paths, texts in plots:
        assert width > 700
        assert 0.2 < height / width < 1.5
        assert paths > 3
        assert texts > 5
    banners = [one.text for one in opened.find_elements("css selector", ".banner")]
    assert "SCREEN, no acceptance run: 40 of the contract's 128 requests." in banners[0]
    assert any("Predicted: no figure" in text for text in banners)
    assert len(opened.find_elements("css selector", "nav a")) == 3
    opened.find_elements("css selector", "nav a")[1].click()
    assert opened.execute_script("return window.scrollY") > 200
    assert opened.save_screenshot(str(tmp_path / "page.png"))
    assert (tmp_path / "page.png").stat().st_size > 20_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("width", [1200, 500])
def test_nothing_is_cut_off_or_covers_something_else(opened: Any, width: int) -> None:
    opened.set_window_size(width, 900)
    inner, whole = opened.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert whole <= inner, "the page must not scroll sideways; wide tables do so in themselves"
    overlapping = opened.execute_script(
        """
        return [...document.querySelectorAll('svg')].flatMap(svg => {
          const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
          const boxes = texts.map(t => t.getBoundingClientRect());
          const found = [];
          boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
              found.push(texts[i].textContent + ' | ' + texts[i + 1 + j].textContent);
          }));
          return found;
        })
        """
    )
    assert overlapping == []


@pytest.mark.timeout(180)
def test_nothing_is_fetched_and_nothing_complains(opened: Any) -> None:
    asked = []
    for entry in opened.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert any(url.startswith("file:") for url in asked), "the log works"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert opened.get_log("browser") == []
