from __future__ import annotations

import io
import json
import shlex
from typing import Any

import pytest
from rich.console import Console

from appliance.rundir.phase import Phase
from entrypoint.display import Address, PhaseBar, PhaseLines


def address(**changes: Any) -> Address:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 8000,
        "sidecar": ("127.0.0.1", 8001),
        "model": "small",
        "key": None,
        "probe": "appliance probe ready",
    }
    return Address(**(values | changes))


def record(phase: str, since: float = 100.0, **changes: Any) -> Phase:
    return Phase.from_json(
        {"phase": phase, "since": since, "started": 100.0, "budget_s": 600, "reason": None} | changes
    )


def test_a_phase_is_told_when_it_begins_and_every_fifteen_seconds() -> None:
    lines = PhaseLines(address())
    assert lines.update(None, 100.0) == []
    assert lines.update(record("starting"), 100.2) == ["starting 0 s of 600 s"]
    assert lines.update(record("starting"), 110.0) == []
    loading = record("loading", 112.0, progress="Loading safetensors 1/2")
    assert lines.update(loading, 112.0) == ["loading 12 s of 600 s: Loading safetensors 1/2"]
    assert lines.update(loading, 126.0) == []
    assert lines.update(loading, 127.5) == ["loading 28 s of 600 s: Loading safetensors 1/2"]


def test_a_phase_without_a_budget_tells_its_time_alone() -> None:
    lines = PhaseLines(address())
    assert lines.update(record("starting", budget_s=None, progress="fetching"), 130.0) == ["starting 30 s: fetching"]


def test_once_ready_it_says_how_to_use_it_and_then_no_more() -> None:
    lines = PhaseLines(address(host="0.0.0.0", sidecar=("0.0.0.0", 8001)))
    assert lines.update(record("ready", 138.4), 140.0) == [
        "ready after 38 s: small at http://127.0.0.1:8000/v1 (listening on all addresses, 0.0.0.0)",
        "try it: curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
        """'{"model": "small", "messages": [{"role": "user", "content": "Name the capital of France."}], """
        """"max_tokens": 256, "temperature": 0}'""",
        "status: http://127.0.0.1:8001/health/ready, or `appliance probe ready`",
    ]
    assert lines.update(record("ready", 138.4), 900.0) == []


def test_an_end_tells_its_reason() -> None:
    lines = PhaseLines(address())
    assert lines.update(record("dead", 150.0, reason="the engine ended"), 150.0) == ["dead: the engine ended"]


@pytest.mark.parametrize("model", ["small", 'it\'s "odd" $HOME'])
def test_the_curl_can_be_pasted(model: str) -> None:
    words = shlex.split(address(model=model).curl())
    assert json.loads(words[words.index("-d") + 1])["model"] == model


def test_the_key_is_asked_for_and_never_shown() -> None:
    assert '-H "Authorization: Bearer $APPLIANCE_API_KEY"' in address(key="$APPLIANCE_API_KEY").curl()
    assert "Authorization" not in address().curl()


def test_addresses_of_version_six_and_with_tls_are_written_as_urls_want_them() -> None:
    assert address(host="::", tls=True).curl().startswith("curl --insecure https://[::1]:8000/v1/")


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def test_in_a_terminal_a_bar_shows_phase_time_and_progress_and_goes_away() -> None:
    console = terminal()
    bar = PhaseBar(address(), console)
    assert bar.update(record("loading", progress="[bold]Loading 1/2"), 112.0) == []
    console.print("a line of the log")
    assert bar.update(record("ready", 138.0), 138.0)[0].startswith("ready after 38 s")
    bar.close()
    written = console.file.getvalue()  # type: ignore[attr-defined] # it is a StringIO
    assert "12 s of 600 s" in written
    assert "[bold]Loading 1/2" in written
    assert "a line of the log" in written
    assert written.endswith(("\x1b[2K", "\x1b[?25h"))


def test_the_bar_comes_back_when_the_engine_is_started_again() -> None:
    console = terminal()
    bar = PhaseBar(address(), console)
    bar.update(record("loading"), 101.0)
    assert bar.update(record("dead", 102.0, reason="gone; starting again in 1 s"), 102.0) == [
        "dead: gone; starting again in 1 s"
    ]
    bar.update(record("starting", 104.0, started=104.0), 105.0)
    bar.close()
    assert "1 s of 600 s" in console.file.getvalue()  # type: ignore[attr-defined] # it is a StringIO
