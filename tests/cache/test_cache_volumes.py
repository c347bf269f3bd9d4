"""Docker volumes of caches, against a daemon that is a double, and against a real one."""

from __future__ import annotations

import builtins
import gc
import json
import sys
import types
import uuid
from typing import TYPE_CHECKING, Any

import docker
import pytest
import requests
from docker import errors

from appliance import cli
from appliance.cache import volumes
from appliance.cache.volumes import LABEL, Volumes
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Double:
    """A daemon with volumes, images and containers; remembers what copying containers it was asked for."""

    def __init__(self, *, status: int = 0, said: bytes = b"") -> None:
        self.kept: dict[str, DoubleVolume] = {}
        self.mounts: dict[str, list[tuple[str, bool]]] = {}
        self.asked: list[dict[str, Any]] = []
        self.status, self.said = status, said
        self.volumes = types.SimpleNamespace(get=self.get, list=self.all, create=self.create)
        self.images = types.SimpleNamespace(get=self.image)
        self.containers = types.SimpleNamespace(list=self.users, create=self.container)
        self.events: list[str] = []

    def add(self, name: str, labels: dict[str, str] | None) -> None:
        self.kept[name] = DoubleVolume(self, name, labels)

    def get(self, name: str) -> DoubleVolume:
        if name not in self.kept:
            raise errors.NotFound(f"no such volume: {name}")
        return self.kept[name]

    def all(self, filters: dict[str, str]) -> list[DoubleVolume]:
        label, _, value = filters["label"].partition("=")
        return [one for one in self.kept.values() if (one.attrs["Labels"] or {}).get(label) == value]

    def create(self, name: str, labels: dict[str, str]) -> DoubleVolume:
        self.kept.setdefault(name, DoubleVolume(self, name, labels))
        return self.kept[name]

    def image(self, name: str) -> None:
        if name != "sidecar":
            raise errors.ImageNotFound(f"no such image: {name}")

    def users(self, **options: Any) -> list[Any]:
        mounts = self.mounts.get(options["filters"]["volume"], [])
        return [types.SimpleNamespace(name=name) for name, running in mounts if running or options["all"]]

    def container(self, image: str, **options: Any) -> Any:
        self.asked.append({"image": image, **options})
        return types.SimpleNamespace(
            start=lambda: self.events.append("start"),
            wait=lambda timeout: {"StatusCode": self.status},
            logs=lambda **_: self.said,
            remove=lambda force: self.events.append("remove"),
        )


class DoubleVolume:
    def __init__(self, daemon: Double, name: str, labels: dict[str, str] | None) -> None:
        self.daemon, self.name = daemon, name
        self.attrs: dict[str, Any] = {"Driver": "local", "CreatedAt": "2026-11-29T10:00:00Z", "Labels": labels}

    def remove(self) -> None:
        del self.daemon.kept[self.name]


@pytest.fixture
def daemon() -> Double:
    daemon = Double()
    daemon.add("cache", {LABEL: "1", "image": "sha256:1"})
    daemon.add("another", {LABEL: "1"})
    daemon.add("database", {"owner": "somebody"})
    daemon.add("plain", None)
    return daemon


def test_only_labelled_volumes_are_listed_with_what_is_in_them_and_who_uses_them(daemon: Double) -> None:
    daemon.mounts["cache"] = [("engine", True), ("old", False)]
    found = Volumes(daemon).list()
    assert [one.name for one in found] == ["another", "cache"]
    assert (found[1].labels, found[1].used_by, found[1].driver) == ({"image": "sha256:1"}, ("engine", "old"), "local")


def test_a_created_volume_is_labelled_and_no_name_is_taken_twice(daemon: Double) -> None:
    made = Volumes(daemon).create("new", {"image": "x", LABEL: "0"})
    assert daemon.kept["new"].attrs["Labels"] == {"image": "x", LABEL: "1"}
    assert made.labels == {"image": "x"}
    with pytest.raises(CheckError, match="there already"):
        Volumes(daemon).create("database")
    assert daemon.kept["database"].attrs["Labels"] == {"owner": "somebody"}


@pytest.mark.parametrize("name", ["database", "plain", "none"])
def test_what_is_not_the_appliances_is_neither_shown_copied_nor_removed(daemon: Double, name: str) -> None:
    client = Volumes(daemon)
    for refuse in (client.inspect, client.remove, lambda name: client.copy(name, "new", "sidecar")):
        with pytest.raises(CheckError, match=r"label|no volume"):
            refuse(name)
    assert set(daemon.kept) == {"cache", "another", "database", "plain"}
    assert daemon.asked == []


@pytest.mark.parametrize("running", [True, False])
def test_a_volume_that_any_container_mounts_is_not_removed(daemon: Double, running: bool) -> None:
    daemon.mounts["cache"] = [("engine", running)]
    with pytest.raises(CheckError, match="in use by engine"):
        Volumes(daemon).remove("cache")
    daemon.mounts.clear()
    Volumes(daemon).remove("cache")
    assert "cache" not in daemon.kept


def test_a_copy_is_made_by_a_container_that_can_do_nothing_else(daemon: Double) -> None:
    daemon.mounts["cache"] = [("old", False)]
    made = Volumes(daemon).copy("cache", "second", "sidecar")
    assert (made.name, made.labels) == ("second", {"image": "sha256:1"})
    asked = daemon.asked[0]
    assert (asked["network_mode"], asked["read_only"], asked["cap_drop"]) == ("none", True, ["ALL"])
    assert asked["security_opt"] == ["no-new-privileges"]
    assert asked["volumes"]["cache"]["mode"] == "ro"
    assert daemon.events == ["start", "remove"]


def test_a_copy_that_fails_tells_the_last_word_and_leaves_no_target(daemon: Double) -> None:
    daemon.status, daemon.said = 1, b"cp: begin\ncp: No space left on device\n"
    with pytest.raises(CheckError, match="status 1: cp: No space left"):
        Volumes(daemon).copy("cache", "second", "sidecar")
    assert "second" not in daemon.kept
    assert daemon.events == ["start", "remove"]


@pytest.mark.parametrize(
    ("target", "image", "running", "why"),
    [
        ("another", "sidecar", False, "there already"),
        ("second", "elsewhere", False, "none is pulled"),
        ("second", "sidecar", True, "stop that first"),
    ],
)
def test_a_copy_that_cannot_be_whole_is_not_begun(
    daemon: Double, target: str, image: str, running: bool, why: str
) -> None:
    daemon.mounts["cache"] = [("engine", running)]
    with pytest.raises(CheckError, match=why):
        Volumes(daemon).copy("cache", target, image)
    assert daemon.asked == []
    assert set(daemon.kept) == {"cache", "another", "database", "plain"}


@pytest.mark.parametrize(
    "error",
    [
        errors.APIError("conflict", explanation="volume is in use"),
        errors.DockerException("daemon\ngone"),
        requests.ConnectionError("refused"),
        requests.ReadTimeout("too long"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_docker_raises_becomes_one_line(daemon: Double, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    daemon.volumes = types.SimpleNamespace(get=fail, list=fail, create=fail)
    client = Volumes(daemon)
    for act in (client.list, lambda: client.inspect("cache"), lambda: client.remove("cache")):
        with pytest.raises(CheckError) as told:
            act()
        assert "\n" not in str(told.value)


# docker-py leaves the socket with which it failed to connect to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_daemon_and_no_package_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert cli.main(["cache", "volumes", "list"]) == 1
    told = capsys.readouterr().err
    gc.collect()
    assert told.count("\n") == 1
    assert "DOCKER_HOST" in told
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "docker":
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.partition(".")[0] == "docker"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert cli.main(["cache", "volumes", "list"]) == 1
    assert "package docker is not installed" in capsys.readouterr().err


def test_the_verb_over_a_daemon(
    daemon: Double, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(volumes, "connect", lambda: Volumes(daemon))
    assert cli.main(["cache", "volumes", "list", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["volumes"]] == ["another", "cache"]
    assert cli.main(["cache", "volumes", "create", "new", "--label", "image=x"]) == 0
    assert "image=x" in capsys.readouterr().out
    assert cli.main(["cache", "volumes", "create", "newer", "--label", "image"]) == 2
    assert cli.main(["cache", "volumes", "copy", "new", "newest", "--image", "sidecar"]) == 0
    assert cli.main(["cache", "volumes", "inspect", "newest"]) == 0
    assert cli.main(["cache", "volumes", "remove", "new", "--json"]) == 0
    assert cli.main(["cache", "volumes", "remove", "database"]) == 1
    assert set(daemon.kept) == {"cache", "another", "database", "plain", "newest"}


@pytest.fixture
def real() -> Iterator[tuple[Any, str, list[str]]]:
    """A daemon, an image of its that has `cp`, and names of volumes that are removed at the end."""
    from tests.requirement import required

    required("docker")
    client = docker.from_env()
    image = local_image(client)
    names = [f"v100-appliance-test-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    yield client, image, names
    for name in names:
        for container in client.containers.list(all=True, filters={"volume": name}):
            container.remove(force=True)
        try:
            client.volumes.get(name).remove()
        except errors.NotFound:
            continue
    client.close()


def local_image(client: Any) -> str:
    for image in client.images.list():
        for tag in image.tags:
            if "debian" in tag or "sidecar" in tag or "portable" in tag:
                return str(tag)
    pytest.skip("no image here has been built or pulled yet")


def in_container(client: Any, image: str, volume: str, script: str) -> str:
    output = client.containers.run(
        image, ["-c", script], entrypoint=["sh"], user="0:0", network_mode="none", remove=True,
        volumes={volume: {"bind": "/v", "mode": "rw"}},
    )  # fmt: skip
    return str(output.decode())


@pytest.mark.image
def test_volumes_of_a_real_daemon(real: tuple[Any, str, list[str]]) -> None:
    client, image, (first, second, foreign) = real
    ours = Volumes(client)
    assert ours.create(first, {"what": "test"}).labels == {"what": "test"}
    in_container(
        client, image, first, "mkdir /v/a && echo kept > /v/a/b && chown -R 4711:4712 /v/a && chmod 750 /v/a/b"
    )
    copied = ours.copy(first, second, image)
    assert (copied.labels, copied.used_by) == ({"what": "test"}, ())
    assert in_container(client, image, second, "cat /v/a/b; stat -c '%u %g %a' /v/a/b") == "kept\n4711 4712 750\n"
    assert {first, second} <= {one.name for one in ours.list()}

    client.volumes.create(name=foreign)
    with pytest.raises(CheckError, match="label"):
        ours.remove(foreign)

    user = client.containers.run(
        image, ["60"], entrypoint=["sleep"], detach=True, network_mode="none", volumes={first: {"bind": "/v"}}
    )
    try:
        assert ours.inspect(first).used_by == (user.name,)
        with pytest.raises(CheckError, match=user.name):
            ours.remove(first)
        with pytest.raises(CheckError, match="stop that first"):
            ours.copy(first, f"{second}-more", image)
    finally:
        user.remove(force=True)
    ours.remove(first)
    with pytest.raises(CheckError, match="no volume"):
        ours.inspect(first)
    with pytest.raises(CheckError, match="there already"):
        ours.copy(second, foreign, image)
    with pytest.raises(CheckError, match="none is pulled"):
        ours.copy(second, first, "v100-appliance-no-such-image:none")
