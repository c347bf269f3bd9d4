"""A run directory in any state, and the sidecar's application over it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import rundir
from appliance.bench import run_directory
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def put(run_dir: Path) -> Callable[..., None]:
    """Write the records of a ready engine as of now, with changes: put(heartbeat={"running": 0}, plan=None)."""

    def write(**changes: dict[str, Any] | None) -> None:
        names = {"phase": rundir.PHASE, "heartbeat": rundir.HEARTBEAT}
        names |= {"plan": rundir.PLAN, "acceleration": rundir.ACCELERATION}
        records = run_directory.ready(rundir.clock())
        for short, name in names.items():
            change = changes.get(short, {})
            (run_dir / name).unlink(missing_ok=True)
            if change is not None:
                rundir.write(run_dir, name, records[name] | change)

    return write


@pytest.fixture
def get(run_dir: Path) -> Callable[..., httpx.Response]:
    """Ask the application over `run_dir`."""
    transport = httpx.ASGITransport(create_app(Services(Options(run_dir))), raise_app_exceptions=False)

    async def ask(path: str, method: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return await client.request(method, path)

    return lambda path, method="GET": asyncio.run(ask(path, method))
