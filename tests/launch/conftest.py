"""A machine that was recorded, a checkpoint that is whole, and a request made of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.launch.request import Request
from appliance.paths import TOPOLOGIES
from appliance.topology import recorded
from tests.launch.launch_cases import NVFP4, Ask, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def make(
        machine: str,
        options: Mapping[str, str] = {},
        after: Sequence[str] = (),
        environ: Mapping[str, str] = {},
    ) -> Request:
        return Request(options, tuple(after), environ, recorded.load(TOPOLOGIES / f"{machine}.json"), tmp_path)

    return make


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder with an NVFP4 checkpoint."""
    return write_checkpoint(tmp_path / "target", NVFP4)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A folder with a draft."""
    return write_checkpoint(tmp_path / "draft", architecture="DFlashDraftModel")
