"""Which failed checks `force` overrules, and which it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance import doctor
from appliance.doctor import Check
from appliance.errors import CheckError
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.paths import TOPOLOGIES
from appliance.topology import recorded
from entrypoint import main

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.launch.plan import Plan

DRIVER = Check("driver", "NVIDIA driver", "fail", "branch 535", "570 to 580", "install a driver of that range")
PORT = Check("engine_port", "engine port", "fail", "8000 is taken", "a free port", "choose another")


def plan(folder: Path, **options: str) -> Plan:
    return resolve(
        Request(
            options={"state_dir": str(folder), **options},
            passthrough=(),
            environ={},
            machine=recorded.load(TOPOLOGIES / "none.json"),
            cwd=folder,
        )
    )


def test_force_turns_checks_of_the_fit_into_warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [DRIVER])
    with pytest.raises(CheckError, match="NVIDIA driver: branch 535; wanted 570 to 580"):
        main._preflight(plan(tmp_path))
    assert main._preflight(plan(tmp_path, force="true")) == [DRIVER.line]


def test_force_frees_no_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "preflight", lambda _: [DRIVER, PORT])
    with pytest.raises(CheckError, match="engine port: 8000 is taken"):
        main._preflight(plan(tmp_path, force="true"))
