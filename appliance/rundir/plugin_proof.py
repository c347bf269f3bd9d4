"""Proof that the plugin is loaded: plugins/PID.json, which each process of the engine writes when it loads it.

vLLM only logs a plugin that fails and serves on without it, so that only what the plugin itself wrote is evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance import rundir

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ROLES = ("api", "core")
"""The processes without whose plugin the engine is not the appliance's."""


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Return every readable proof, by process id."""
    files = sorted((run_dir / rundir.PLUGINS).glob("[0-9]*.json"))
    found = (rundir.read(file.parent, file.name) for file in files)
    return [record for record in found if record is not None]


def proven(run_dir: Path, pids: Collection[int]) -> dict[str, bool]:
    """Return for each role whether one of `pids`, the engine's living processes, has loaded the plugin."""
    loaded = {record.get("role") for record in records(run_dir) if record.get("pid") in pids and not _error(record)}
    return {role: role in loaded for role in ROLES}


def errors(run_dir: Path) -> list[str]:
    """Return what went wrong in processes where the plugin failed, one sentence each."""
    return [
        f"{record.get('role')} (pid {record.get('pid')}): {_error(record)}"
        for record in records(run_dir)
        if _error(record)
    ]


def _error(record: dict[str, Any]) -> str | None:
    return record.get("error")
