"""Where the appliance's own files are, and which folders it writes to."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout, or the image's copy of it."""

CONFIG = ROOT / "config"
PROFILES = CONFIG / "profiles"
TOPOLOGIES = CONFIG / "topologies"
REFERENCES = CONFIG / "references"


def default_state_dir() -> Path:
    """The one writable folder when nothing else is configured: beside the checkout's sources."""
    return ROOT / ".appliance"


def run_dir() -> Path:
    """The run directory of this process: `APPLIANCE_RUN_DIR`, as every child of the entrypoint inherits it."""
    return Path(os.environ.get("APPLIANCE_RUN_DIR") or default_state_dir() / "run")
