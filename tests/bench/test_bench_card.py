"""`appliance bench card` without a card: records read, told and drawn, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bench import card, card_plot
from appliance.cli import main
from appliance.errors import CheckError

if TYPE_CHECKING:
    from pathlib import Path

FAMILY = {
    "family": "dense",
    "candidates": 3,
    "order": 0.5,
    "order_of_all": 0.5,
    "error": -0.08,
    "least_error": -0.12,
    "greatest_error": 0.04,
    "lost": 0.021,
}
FOUND: dict[str, Any] = {
    "schema": 1,
    "card": "Tesla V100-SXM2-16GB",
    "capability": "7.0",
    "clock_ghz": 1.5301,
    "empty_us": 2.25,
    "reads": [{"kernel": "card_read", "bytes_in_flight": 1024, "gb_s": 140.0}],
    "answers": [
        {"constant": "l2", "about": "dependent loads", "own": 210.7, "value": 212.0, "note": ""},
        {"constant": "fetch", "about": "a loop", "own": 8.0, "value": None, "note": "no value in reach"},
    ],
    "agreement": [FAMILY, FAMILY | {"family": "norm", "order": None}],
    "agreement_with_card": [FAMILY | {"error": 0.01}],
    "trials": [{"family": "dense", "predicted": [30.0, 28.0], "microseconds": [31.0, 33.0]}],
    "changes": ["dense n=1: b takes 10.00 µs, the table's a 12.00 µs (+20.0%)"],
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "card.json"
    path.write_text(json.dumps(FOUND), encoding="utf-8")
    return path


def test_a_record_is_told_and_drawn(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "card", "--read", "--out", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "measured on a Tesla V100-SXM2-16GB (compute capability 7.0), clock 1.530 GHz" in out
    assert "l2                     210.7       212  dependent loads" in out
    assert "fetch                      8         -  no value in reach" in out
    assert (
        "dense: 3 candidates, rank correlation 0.50, error -8.0% (-12.0% to +4.0%); its choices lose at most 2.1%"
        in out
    )
    assert "norm: 3 candidates, too few to rank" in out
    assert "what it would change:\n  dense n=1: b takes 10.00 µs" in out
    assert f"--constants {kept}" in out


def test_the_plot_has_a_mark_for_each_candidate(kept: Path) -> None:
    pytest.importorskip("matplotlib")
    record = card.read(kept)
    assert [(pair.predicted, pair.timed) for pair in record.pairs] == [(30.0, 31.0), (28.0, 33.0)]
    drawn = card_plot.predicted_and_timed(record)
    assert drawn is not None
    assert "xmlns=" in drawn
    assert "Timed and predicted on a Tesla V100-SXM2-16GB" in drawn
    assert "timed, µs" in drawn
    none = card.parse(FOUND | {"trials": [], "changes": []})
    assert card_plot.predicted_and_timed(none) is None
    assert "it would change no choice of the tables" in card.text(none)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[]", "TypeError"), ("{", "JSONDecodeError"), ("{}", "KeyError: 'card'")],
)
def test_what_is_no_record_is_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(CheckError, match=f"is no record of a card .{says}") as caught:
        card.read(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckError, match="cannot be read: No such file"):
        card.read(tmp_path / "none.json")


def test_the_record_is_made_by_a_process_of_its_own(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, len(asked) - 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert card.measure(kept, 4).card == FOUND["card"]
    assert asked == [(sys.executable, "-m", "sm70_kernels.card", "--out", str(kept), "--ranks", "4")]
    with pytest.raises(CheckError, match=r"could not be measured \(status 1\)"):
        card.measure(kept, 4)

    def late(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("python", card.TIMEOUT_S)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(CheckError, match="has not been measured after 900 s"):
        card.measure(kept, 4)
