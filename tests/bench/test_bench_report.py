"""Markdown and the HTML page: whole, escaped, self-contained, and a screen called a screen."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from appliance import cli
from appliance.bench import plots, report, report_page, statistics
from appliance.bench.output import Output, write_page
from appliance.errors import CheckError
from tests.bench import bench_samples as samples

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.bench.result import Result

MODEL = {
    "provenance": "predicted",
    "predictions": [
        {"m": 1, "part": "gate_up", "launches_a_step": 64, "us": 58.269, "roofline_us": 55.858, "bound": "dram"},
        {"m": 32, "part": "gate_up", "launches_a_step": 64, "us": 84.5, "roofline_us": 55.9, "bound": "tensor"},
        {"m": 32, "part": "<down>", "launches_a_step": 64, "us": 44.0, "roofline_us": 27.9, "bound": "issue"},
    ],
}


class Page(HTMLParser):
    """Every element's attributes and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def sweep() -> list[Result]:
    return [
        samples.decoded(1, 2048, 60.0),
        samples.decoded(8, 2048, 400.0),
        samples.decoded(32, 2048, 1085.0),
        samples.decoded(32, 8192, 885.0),
        samples.screened(),
    ]


def test_markdown_tells_figures_exclusions_contract_and_machine() -> None:
    text = report.markdown([samples.decoded()])
    assert "| stable decode step, ms, repeat 1 | 29.502 | 29.489 | 29.511 | 29.877 | 244 |" in text
    assert "| stable decode step, ms, pooled | 29.518 |" in text
    assert "| prompt tokens were computed | 18 steps |" in text
    for told in ("v100-appliance:v100@sha256:12ab", "ab" * 32, "qwen38_27b_fp8_c32", "NVLink joins every pair."):
        assert told in text
    assert "GPU0 SM 1530 MHz, memory 877 MHz, limit 300 W, at most 61 °C, throttled by power cap" in text
    assert "enabled: fp8_dense; disabled: user_override: gdn_decode" in text
    assert "SCREEN" not in text
    assert "NOT SOUND" not in text


def test_a_screen_and_a_failure_stand_before_any_figure() -> None:
    text = report.markdown([samples.screened()])
    banner = text.index("SCREEN, no acceptance run: 40 of the contract's 128 requests.")
    assert banner < text.index("## Figures")
    assert "NOT SOUND: 1 request: Internal Server Error." in text
    assert "| over 4 s | 30.230 % |" in text
    assert "# 32K &lt;serving> \\| screen [SCREEN, NOT SOUND]" in text


def test_what_was_not_told_is_said_to_be_so() -> None:
    bare = samples.result([], environment=samples.ENVIRONMENT.model_copy(update={"image": None, "clocks": ()}))
    text = report.markdown([bare])
    assert "| image | not told |" in text
    assert "| clocks | no GPU was asked |" in text


def test_a_mode_without_samples_has_no_figures() -> None:
    text = report.markdown([samples.result(statistics.by_mode("itl_ms", "1", [50.0, 60.0]), kind="serve")])
    assert "| under 100 ms | 100.000 % | 55.000 | 55.000 |" in text
    assert "| over 4 s | 0.000 % | – | – | – | – | 0 |" in text


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = report_page.page(sweep(), MODEL, ["a note & more"])
    page = Page(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("svg") == 2 + 4 + 1 + 1, "two throughputs, four step distributions, one of latencies, the kernels"
    assert "script" not in tags
    assert "img" not in tags
    for tag, attributes in page.elements:
        for name in ("href", "src", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
    assert not re.findall(r"url\((?!#)|@import", text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "several plots share the page"
    wanted = {v[1:] for _, a in page.elements for n, v in a.items() if n.endswith("href") and v and v[0] == "#"}
    assert wanted <= set(ids)
    assert "32K <serving> | screen" in page.text
    assert "<serving>" not in text
    assert "a note & more" in page.text
    assert "Predicted: no figure of this plot was measured on a V100." in page.text
    assert "Results that are not sound are left out of the plots of throughput." in page.text


def test_every_plot_has_a_name_and_is_well_formed() -> None:
    result = samples.decoded()
    drawn = [
        plots.steps(result),
        plots.latencies(samples.screened()),
        plots.throughput(sweep(), "concurrency"),
        plots.throughput(sweep(), "input_tokens"),
        plots.rooflines(MODEL),
    ]
    for one in drawn:
        assert one is not None
        root = ET.fromstring(one)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert root.get("viewBox")
    assert "mean 29.502" in (drawn[0] or "")
    assert "66% of the roofline, bound: tensor" in (drawn[4] or "")
    assert "gate_up" in (drawn[4] or "")


def test_points_of_one_line_differ_in_one_thing_alone() -> None:
    def other(concurrency: int, rate: float) -> Result:
        told = samples.decoded(concurrency, 2048, rate)
        environment = told.environment.model_copy(update={"profile": "qwen38_27b_nvfp4_dflash2"})
        return told.model_copy(update={"environment": environment})

    assert plots.throughput([samples.decoded(1, 2048, 60.0), other(8, 900.0)], "concurrency") is None
    mixed = [samples.decoded(1, 2048, 60.0), samples.decoded(8, 2048, 400.0), other(1, 90.0), other(8, 900.0)]
    drawn = plots.throughput(mixed, "concurrency") or ""
    for number in (1, 2):
        assert f"stable decode steps alone, 2048 prompt tokens, {number} of 2" in drawn
    assert plots.throughput([samples.decoded(1, 2048, 60.0), samples.decoded(1, 2048, 61.0)], "concurrency") is None


def test_the_rate_of_decode_steps_is_called_that() -> None:
    assert "| output tokens/s, stable decode steps alone | 1085.000 |" in report.markdown([samples.decoded()])


def test_the_same_result_draws_the_same_plot() -> None:
    assert plots.steps(samples.decoded()) == plots.steps(samples.decoded())


def test_there_is_no_plot_of_nothing() -> None:
    assert plots.steps(samples.screened()) is None
    assert plots.latencies(samples.decoded()) is None
    assert plots.throughput([samples.decoded(), samples.screened()], "concurrency") is None
    assert plots.rooflines({"predictions": []}) is None


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [0.0, 0.0, 7000.0], [0.01, 5e5]])
def test_distributions_of_any_shape_can_be_drawn(values: list[float]) -> None:
    result = samples.result([statistics.trace("itl_ms", "1", values)], kind="serve")
    assert plots.latencies(result) is not None
    result = samples.result([statistics.trace("decode_step_ms", "1", values)])
    assert plots.steps(result) is not None


def written(folder: Path) -> list[str]:
    files = []
    for number, result in enumerate(sweep()):
        file = folder / f"{number}.json"
        result.write(file)
        files.append(str(file))
    return files


def test_the_command_puts_results_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    words = ["--html", str(tmp_path / "page.html"), "--markdown", str(tmp_path / "all.md")]
    words += ["--roofline-file", str(tmp_path / "model.json")]
    assert cli.main(["bench", "report", *written(tmp_path), *words]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "all.md").read_text() == report.markdown(sweep())
    assert (tmp_path / "page.html").read_text() == report_page.page(sweep(), MODEL)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no JSON"),
        ("[]", "no predictions in it"),
        ('{"predictions": 3}', "no predictions"),
        ('{"predictions": [3]}', "a prediction lacks what is drawn"),
        ('{"predictions": [{"us": 1, "roofline_us": 1}]}', "a prediction lacks what is drawn"),
    ],
)
def test_a_roofline_file_of_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    (tmp_path / "model.json").write_text(content)
    words = ["--html", str(tmp_path / "page.html"), "--roofline-file", str(tmp_path / "model.json")]
    assert cli.main(["bench", "report", *written(tmp_path)[:1], *words]) == 2
    assert told in capsys.readouterr().err


def test_the_command_prints_the_results_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = written(tmp_path)
    assert cli.main(["bench", "report", *files, "--json", "--markdown", str(tmp_path / "all.md")]) == 0
    assert json.loads(capsys.readouterr().out) == [result.to_json() for result in sweep()]
    assert (tmp_path / "all.md").read_text() == report.markdown(sweep())
    assert cli.main(["bench", "report", files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == sweep()[0].to_json()


@pytest.mark.parametrize("words", [["--roofline"], ["--roofline-file", "model.json"]])
def test_a_roofline_without_a_page_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(["bench", "report", *written(tmp_path)[:1], *words]) == 2
    assert "name its file with --html" in capsys.readouterr().err


def test_a_result_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert cli.main(["bench", "report", str(tmp_path / "x.json")]) == 2
    assert "x.json" in capsys.readouterr().err


def test_without_matplotlib_the_rest_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    output = Output(tmp_path, as_json=False)
    output.add(samples.decoded(), "decode")
    output.finish()
    assert "report.html is not written: its plots need matplotlib" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["decode.json", "report.md"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(CheckError, match="No space left on device"):
        write_page(file, [samples.decoded()])
    assert file.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
