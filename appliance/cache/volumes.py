"""Docker volumes that hold compile caches, through docker-py: list, create, inspect, copy, remove."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LABEL = "org.v100-appliance.cache"
"""The label of a volume that these functions may copy and remove; its value is `1`."""

COPY_SECONDS = 1800

_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
"""What root in the copying container needs to give the copies their owners, and nothing more."""


@dataclass(frozen=True)
class Volume:
    """A labelled volume. `labels` are without LABEL; `used_by` names the containers, running or not, that mount it."""

    name: str
    driver: str
    created_at: str
    labels: Mapping[str, str]
    used_by: tuple[str, ...]


class Volumes:
    """The labelled volumes of one Docker daemon. Methods raise CheckError when it cannot be reached, or refuses."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - docker-py has no types
        self._client = client

    def list(self) -> list[Volume]:
        """Return the labelled volumes by name."""
        with _told("the volumes cannot be listed"):
            found = self._client.volumes.list(filters={"label": f"{LABEL}=1"})
            return sorted((self._volume(volume) for volume in found), key=lambda volume: volume.name)

    def create(self, name: str, labels: Mapping[str, str] | None = None) -> Volume:
        """Create a labelled volume. Raises CheckError when the name is taken."""
        with _told(f"volume {name} cannot be created"):
            # The daemon takes a second creation for the first one.
            if self._get(name) is not None:
                raise CheckError(f"volume {name} is there already; name a new one")
            return self._volume(self._client.volumes.create(name=name, labels={**(labels or {}), LABEL: "1"}))

    def inspect(self, name: str) -> Volume:
        """Return one volume. Raises CheckError when it is not there or not labelled."""
        with _told(f"volume {name} cannot be inspected"):
            return self._volume(self._ours(name))

    def copy(self, source: str, target: str, image: str) -> Volume:
        """Copy what is in `source` into the new volume `target`, by a container of `image` without a network.

        Raises CheckError when `target` exists, when a running container mounts `source`, whose files may then be half
        written, when `image` is not there (it is never pulled), or when the copy failed; a target that was begun is
        then removed.
        """
        with _told(f"volume {source} cannot be copied"):
            before = self._volume(self._ours(source))
            running = self._containers(source, running=True)
            if running:
                raise CheckError(f"volume {source} is in use by {', '.join(running)}; stop that first")
            if not self._has_image(image):
                raise CheckError(f"image {image} is not on this machine, and none is pulled; name one that is")
            self.create(target, before.labels)
            try:
                self._run_copy(source, target, image)
            except BaseException:
                with suppress(Exception):
                    self._client.volumes.get(target).remove()
                raise
            return self.inspect(target)

    def remove(self, name: str) -> None:
        """Remove a volume. Raises CheckError when it is not labelled or a container mounts it, running or not."""
        with _told(f"volume {name} cannot be removed"):
            volume = self._ours(name)
            used = self._containers(name)
            if used:
                raise CheckError(f"volume {name} is in use by {', '.join(used)}; remove those containers first")
            volume.remove()

    def _run_copy(self, source: str, target: str, image: str) -> None:
        container = self._client.containers.create(
            image,
            entrypoint=["cp"],
            command=["-a", "/from/.", "/to/"],
            user="0:0",
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            cap_add=_CAPABILITIES,
            security_opt=["no-new-privileges"],
            volumes={source: {"bind": "/from", "mode": "ro"}, target: {"bind": "/to", "mode": "rw"}},
        )
        try:
            container.start()
            status = container.wait(timeout=COPY_SECONDS)["StatusCode"]
            if status != 0:
                said = container.logs(stdout=True, stderr=True).decode(errors="replace").strip().splitlines()
                raise CheckError(f"the copy of {source} ended with status {status}: {said[-1] if said else 'no word'}")
        finally:
            container.remove(force=True)

    def _ours(self, name: str) -> Any:  # noqa: ANN401
        volume = self._get(name)
        if volume is None:
            raise CheckError(f"no volume {name}; `appliance cache volumes list` shows those of the appliance")
        if (volume.attrs.get("Labels") or {}).get(LABEL) != "1":
            raise CheckError(f"volume {name} has not the label {LABEL}=1, so it is not the appliance's to touch")
        return volume

    def _get(self, name: str) -> Any:  # noqa: ANN401
        from docker import errors

        try:
            return self._client.volumes.get(name)
        except errors.NotFound:
            return None

    def _has_image(self, image: str) -> bool:
        from docker import errors

        try:
            self._client.images.get(image)
        except errors.ImageNotFound:
            return False
        return True

    def _containers(self, name: str, *, running: bool = False) -> tuple[str, ...]:
        found = self._client.containers.list(all=not running, filters={"volume": name})
        return tuple(sorted(container.name for container in found))

    def _volume(self, volume: Any) -> Volume:  # noqa: ANN401
        labels = {key: value for key, value in (volume.attrs.get("Labels") or {}).items() if key != LABEL}
        return Volume(
            name=volume.name,
            driver=str(volume.attrs.get("Driver", "")),
            created_at=str(volume.attrs.get("CreatedAt", "")),
            labels=labels,
            used_by=self._containers(volume.name),
        )


def connect() -> Volumes:
    """Return the volumes of the daemon that the environment names (DOCKER_HOST), else the local one.

    Raises CheckError when the package `docker` is missing or no daemon answers.
    """
    try:
        import docker
    except ImportError:
        raise CheckError(
            "the Python package docker is not installed here; install the extra `sidecar` (pip install docker)"
        ) from None
    with _told("no Docker daemon answers; start one, or set DOCKER_HOST"):
        return Volumes(docker.from_env())


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Make one line of what docker-py and what it stands on raise."""
    import requests
    from docker import errors

    try:
        yield
    except errors.APIError as error:
        raise CheckError(f"{what}: {error.explanation or error}") from error
    except (errors.DockerException, requests.RequestException) as error:
        # It quotes urllib3 quoting a socket: the innermost says what a person can use.
        raise CheckError(f"{what} ({str(error).splitlines()[0]})") from error
