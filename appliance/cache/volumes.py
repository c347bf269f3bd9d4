"""Docker volumes that hold compile caches, through docker-py: list, create, inspect, copy, remove."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "org.v100-appliance.cache"
"""The label of a volume that these functions may copy and remove; its value is `1`."""


@dataclass(frozen=True)
class Volume:
    """A labelled volume. `labels` are without LABEL; `used_by` names the containers, running or not, that mount it."""

    name: str
    driver: str
    created_at: str
    labels: Mapping[str, str]
    used_by: tuple[str, ...]


class Volumes:
    """The labelled volumes of one Docker daemon. Methods raise CheckError when it cannot be reached."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - docker-py has no types
        self._client = client

    def list(self) -> list[Volume]:
        """Return the labelled volumes by name."""
        raise NotImplementedError

    def create(self, name: str, labels: Mapping[str, str] | None = None) -> Volume:
        """Create a labelled volume. Raises CheckError when the name is taken."""
        raise NotImplementedError

    def inspect(self, name: str) -> Volume:
        """Return one volume. Raises CheckError when it is not there or not labelled."""
        raise NotImplementedError

    def copy(self, source: str, target: str, image: str) -> Volume:
        """Copy what is in `source` into the new volume `target`, by a container of `image` without a network.

        Raises CheckError when `target` exists, `image` is not there (it is never pulled), or the copy failed; a target
        that was begun is then removed.
        """
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Remove a volume. Raises CheckError when it is not labelled or a container mounts it."""
        raise NotImplementedError


def connect() -> Volumes:
    """Return the volumes of the daemon that the environment names (DOCKER_HOST), else the local one.

    Raises CheckError when the package `docker` is missing or no daemon answers.
    """
    raise NotImplementedError
