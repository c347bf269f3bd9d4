"""`appliance sidecar`: health, metadata, acceleration, compile cache, metrics and the status page."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import paths
from appliance.launch import keys, layers, settings
from appliance.sidecar.options import Options, check_url

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from types import FrameType

    from appliance.launch.plan import Sourced

SUMMARY = (
    "Answer health, profile, topology, acceleration, compile cache and metrics over HTTP, and show them on a page. "
    "The engine may start later, or elsewhere with the run directory shared. What it serves, it reads; only the "
    "compile cache can be changed, with the token of APPLIANCE_SIDECAR_TOKEN_FILE."
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
    parser.add_argument(
        "--cache-dir", metavar="DIR", help="the compile cache (default: APPLIANCE_CACHE_DIR, else the plan's)"
    )
    parser.add_argument(
        "--engine-url", metavar="URL", help="the engine's address (default: APPLIANCE_ENGINE_URL, else the plan's)"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token for writing (default: APPLIANCE_SIDECAR_TOKEN_FILE)"
    )
    parser.add_argument("--log-format", help="plain or json (default: APPLIANCE_LOG_FORMAT, else plain)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM; returns 0 then. Raises CheckError when the port cannot be had."""
    signal.signal(signal.SIGTERM, _end)
    given = {
        "sidecar_host": arguments.host,
        "sidecar_port": arguments.port if arguments.port != "0" else None,
        "run_dir": arguments.run_dir,
        "cache_dir": arguments.cache_dir,
        "engine_url": arguments.engine_url,
        "sidecar_token_file": arguments.token_file,
        "log_format": arguments.log_format,
    }
    written = {name: text for name, text in given.items() if text is not None}
    layered = layers.settle(written, (), os.environ, Path.cwd()).settings
    value = {name: setting.default for name, setting in settings.SETTINGS.items()}
    value |= {name: sourced.value for name, sourced in layered.items()}
    options = _options(layered, os.environ)
    # After the settings are read: FastAPI takes a third of a second, and a misspelt name is told at once.
    from appliance.sidecar import app, logs, server
    from appliance.sidecar.services import Services

    logs.configure(value["log_format"])
    port = 0 if arguments.port == "0" else value["sidecar_port"]
    services = Services(options)
    with server.listen(value["sidecar_host"] or value["host"], port) as listener, services.running():
        app.logger.info("listening on %s, run directory %s", server.url(listener), options.run_dir)
        server.serve(app.create_app(services), listener)
    return 0


def _options(layered: Mapping[str, Sourced], environ: Mapping[str, str]) -> Options:
    """Raises ConfigurationError for a key or a token that cannot be read, and for an address that is none."""
    given = {name: sourced.value for name, sourced in layered.items()}
    state_dir = given.get("state_dir")
    if "run_dir" in given:
        run_dir = Path(given["run_dir"])
    else:
        run_dir = Path(state_dir) / "run" if state_dir else paths.run_dir()
    key, token, url = keys.api_key(layered, environ), keys.sidecar_token(layered), layered.get("engine_url")
    return Options(
        run_dir,
        cache_dir=Path(given["cache_dir"]) if "cache_dir" in given else None,
        engine_url=None if url is None else check_url(url.value, url.source),
        engine_key=None if key is None else key.value,
        token=None if token is None else token.value,
    )


def _end(_signal: int, _frame: FrameType | None) -> None:
    # Before uvicorn takes the signal over, and again when it hands it back after the last answer.
    sys.exit(0)
