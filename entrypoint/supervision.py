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
SIDECAR = Path(__file__).with_name("supervisord.sidecar.conf")

PROGRAMS = ("supervisor", "guardian", "engine", "sidecar")
"""The streams of the log."""


@dataclass(frozen=True)
class Wiring:
    """What one start puts into the template. `pipes` holds a file descriptor, inherited by supervisord, per stream.

    `sidecar` is host and port where one is started, None where it has a container of its own.
    """

    run_dir: Path
    sidecar: tuple[str, int] | None
    stop_seconds: int
    """What the engine's program gets between SIGTERM and SIGKILL."""
    pipes: dict[str, int]
    root: bool


def configuration(wiring: Wiring) -> str:
    """Return the text of the configuration. Raises ConfigurationError for a path that it cannot hold."""
    files = [TEMPLATE, *([SIDECAR] if wiring.sidecar else [])]
    return Template("\n".join(file.read_text(encoding="utf-8") for file in files)).substitute(
        pidfile=_value(str(wiring.run_dir / "supervisord.pid")),
        # supervisord calls it critical to be root unless told so; in a container with a mapped root it is meant.
        user="user=0" if wiring.root else "",
        engine=_command("SIGTERM", "entrypoint.guardian"),
        sidecar=_command("SIGTERM", "appliance.cli", *_sidecar(wiring)),
        ender=_command("SIGKILL", "entrypoint.ender"),
        stop_seconds=wiring.stop_seconds,
        **{f"{name}_fd": wiring.pipes[name] for name in PROGRAMS},
    )


def _sidecar(wiring: Wiring) -> list[str]:
    if wiring.sidecar is None:
        return []
    host, port = wiring.sidecar
    # The entrypoint gives every line its form; JSON inside JSON would help nobody.
    return ["sidecar", "--run-dir", str(wiring.run_dir), "--host", host, "--port", str(port), "--log-format", "plain"]


def _command(sign: str, module: str, *arguments: str) -> str:
    # -P: the current folder is no place for modules, a checkout there would shadow what is installed.
    return _value(shlex.join(processes.tethered([sys.executable, "-P", "-m", module, *arguments], sign)))


def _value(text: str) -> str:
    if any(mark in text for mark in (" ;", " #", "\n")):
        raise ConfigurationError(f"{text}: supervisord's configuration cannot hold a path with ; or # after a space")
    return text.replace("%", "%%")
