"""Fills in supervisord's configuration. Pure."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template

from appliance.errors import ConfigurationError
from entrypoint import processes

TEMPLATE = Path(__file__).with_name("supervisord.conf")

PROGRAMS = ("supervisor", "guardian", "engine", "sidecar")
"""The streams of the log."""


@dataclass(frozen=True)
class Wiring:
    """What one start puts into the template. `pipes` holds a file descriptor, inherited by supervisord, per stream."""

    run_dir: Path
    sidecar_host: str
    sidecar_port: int
    stop_seconds: int
    """What the engine's program gets between SIGTERM and SIGKILL."""
    pipes: dict[str, int]
    root: bool


def configuration(wiring: Wiring) -> str:
    """Return the text of the configuration. Raises ConfigurationError for a path that it cannot hold."""
    sidecar = [
        *("sidecar", "--run-dir", str(wiring.run_dir)),
        *("--host", wiring.sidecar_host, "--port", str(wiring.sidecar_port)),
        # The entrypoint gives every line its form; JSON inside JSON would help nobody.
        *("--log-format", "plain"),
    ]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        pidfile=_value(str(wiring.run_dir / "supervisord.pid")),
        # supervisord calls it critical to be root unless told so; in a container with a mapped root it is meant.
        user="user=0" if wiring.root else "",
        engine=_command("SIGTERM", "entrypoint.guardian"),
        sidecar=_command("SIGTERM", "appliance.cli", *sidecar),
        ender=_command("SIGKILL", "entrypoint.ender"),
        stop_seconds=wiring.stop_seconds,
        **{f"{name}_fd": wiring.pipes[name] for name in PROGRAMS},
    )


def _command(sign: str, module: str, *arguments: str) -> str:
    # -P: the current folder is no place for modules, a checkout there would shadow what is installed.
    return _value(shlex.join(processes.tethered([sys.executable, "-P", "-m", module, *arguments], sign)))


def _value(text: str) -> str:
    if any(mark in text for mark in (" ;", " #", "\n")):
        raise ConfigurationError(f"{text}: supervisord's configuration cannot hold a path with ; or # after a space")
    return text.replace("%", "%%")
