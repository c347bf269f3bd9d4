"""The images, and a folder of models, once for a whole run of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import image_stack
import pytest
from requirement import required

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def images() -> None:
    """Both small images as this tree makes them; BuildKit's cache makes a second build one of seconds."""
    required("docker")
    image_stack.build("engine", "sidecar")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a container of any user id leaves the model that it converted, for the next start."""
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o1777)
    return folder
