"""plugins/PID.json: the proof that the plugin is loaded, which each process of the engine writes when it loads it.

vLLM only logs a plugin that fails and serves on without it, so that only what the plugin itself wrote is evidence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import Record

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ROLES = ("api", "core")
"""The processes without whose plugin the engine is not the appliance's."""


@dataclass(frozen=True)
class PluginProof(Record):
    """One process of the engine: its role (api, core or worker) and what is loaded in it."""

    pid: int | None = None
    role: str | None = None
    at: float | None = None
    appliance: str | None = None
    vllm: str | None = None
    torch: str | None = None
    python: str | None = None
    source: str | None = None
    """SHA-256 over the plugin's modules."""
    kernels: str | None = None
    """SHA-256 of the kernels' sources; None where there are none."""
    error: str | None = None
    """What the plugin failed with."""

    @classmethod
    def from_json(cls, value: object) -> PluginProof:
        """See Record."""
        given = JsonFields(value)
        return cls(
            pid=given.integer("pid"),
            role=given.text("role"),
            at=given.number("at"),
            appliance=given.text("appliance"),
            vllm=given.text("vllm"),
            torch=given.text("torch"),
            python=given.text("python"),
            source=given.text("source"),
            kernels=given.text("kernels"),
            error=given.text("error"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def write(self, run_dir: Path) -> None:
        """Write the proof of the process `pid`. Raises OSError."""
        files.share(run_dir / files.PLUGINS)
        files.write(run_dir / files.PLUGINS, f"{self.pid}.json", self.to_json())


def read_all(run_dir: Path) -> list[PluginProof]:
    """Return every readable proof."""
    found = (files.read(file.parent, file.name) for file in sorted((run_dir / files.PLUGINS).glob("[0-9]*.json")))
    return [PluginProof.from_json(value) for value in found if value is not None]


def of_role(run_dir: Path, role: str) -> PluginProof:
    """Return the first proof of a process of that role, an empty one where there is none."""
    return next((proof for proof in read_all(run_dir) if proof.role == role), PluginProof())


def proven(run_dir: Path, pids: Collection[int]) -> dict[str, bool]:
    """Return for each role whether one of `pids`, the engine's living processes, has loaded the plugin."""
    loaded = {proof.role for proof in read_all(run_dir) if proof.pid in pids and not proof.error}
    return {role: role in loaded for role in ROLES}


def errors(run_dir: Path) -> list[str]:
    """Return what went wrong in processes where the plugin failed, one sentence each."""
    return [f"{proof.role} (pid {proof.pid}): {proof.error}" for proof in read_all(run_dir) if proof.error]
