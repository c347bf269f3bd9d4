"""`appliance sidecar`: the health and metadata service alone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import paths
from appliance.launch import layers, settings

if TYPE_CHECKING:
    import argparse
    from types import FrameType

SUMMARY = (
    "Answer health, profile, topology, acceleration and metrics over HTTP, out of an engine's run directory. "
    "The engine may start later, or elsewhere with the folder shared."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options: the settings that concern the sidecar, by shorter names."""
    parser.add_argument(
        "--host", help="address to listen on (default: APPLIANCE_SIDECAR_HOST, else that of the engine)"
    )
    parser.add_argument(
        "--port", help="port to listen on, 0 for any free one (default: APPLIANCE_SIDECAR_PORT, else 8001)"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run directory (default: APPLIANCE_RUN_DIR)")
    parser.add_argument("--log-format", help="plain or json (default: APPLIANCE_LOG_FORMAT, else plain)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM; returns 0 then. Raises CheckError when the port cannot be had."""
    signal.signal(signal.SIGTERM, _end)
    given = {
        "sidecar_host": arguments.host,
        "sidecar_port": arguments.port if arguments.port != "0" else None,
        "run_dir": arguments.run_dir,
        "log_format": arguments.log_format,
    }
    written = {name: text for name, text in given.items() if text is not None}
    layered = layers.settle(written, (), os.environ, Path.cwd()).settings
    value = {name: setting.default for name, setting in settings.SETTINGS.items()}
    value |= {name: sourced.value for name, sourced in layered.items()}
    if value["run_dir"]:
        run_dir = Path(value["run_dir"])
    else:
        run_dir = Path(value["state_dir"]) / "run" if value["state_dir"] else paths.run_dir()
    # After the settings are read: FastAPI takes a third of a second, and a misspelt name is told at once.
    from appliance.sidecar import app, logs, server

    logs.configure(value["log_format"])
    port = 0 if arguments.port == "0" else value["sidecar_port"]
    with server.listen(value["sidecar_host"] or value["host"], port) as listener:
        app.logger.info("listening on %s, run directory %s", server.url(listener), run_dir)
        server.serve(app.create_app(run_dir), listener)
    return 0


def _end(_signal: int, _frame: FrameType | None) -> None:
    # Before uvicorn takes the signal over, and again when it hands it back after the last answer.
    sys.exit(0)
