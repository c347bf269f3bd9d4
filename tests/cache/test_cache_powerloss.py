"""Power that goes at any moment: after every step of what writes to the disk, with everything lost that may be lost.

The model of a disk: what was synced is there whole; of a file that was written and not synced any part may be there; a
rename or a new name whose folder was not synced may be there or not. A start on another boot must then be cold, or warm
with exactly what was sealed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cache import archive, durable, place
from appliance.cache.store import Store
from tests.cache.cachekit import ARTEFACTS, KEY, PARTS, TOKENS, another_boot, contents, fill, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMORY = "/dev/shm"


class PowerLossError(BaseException):
    """Nothing catches it, as nothing catches the real one."""


@dataclass
class Disk:
    """Counts the steps that reach the disk, and stops the machine before step `stop`; None lets all of them pass."""

    stop: int | None = None
    steps: list[str] = field(default_factory=list)
    synced: set[Path] = field(default_factory=set)
    renamed: list[tuple[Path, Path]] = field(default_factory=list)
    """Renames that no sync of their folder has followed yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, what: str) -> None:
        with self.lock:
            if self.stop is not None and len(self.steps) >= self.stop:
                raise PowerLossError
            self.steps.append(what)

    def install(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        """Put the counter in front of everything that changes the disk; what is under `root` is on it."""
        self.synced.update(root.rglob("*"))
        # What a real sync costs is no part of the model.
        patch.setattr(os, "fsync", lambda _: None)
        for owner, name in (
            *((durable, name) for name in ("_write", "_replace", "_sync", "write_new")),
            *((Path, name) for name in ("unlink", "mkdir", "replace")),
            *((module, "erase") for module in (place, archive)),
        ):
            patch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name: str, act: Callable[..., None]) -> Callable[..., None]:
        """Return `act` as one step, which the model remembers."""

        def step(path: Path, *arguments: Any, **options: Any) -> None:
            try:
                self.step(f"{name} {path.name}")
            except PowerLossError:
                if name == "_write":
                    path.write_bytes(arguments[0][: len(arguments[0]) // 2])
                raise
            act(path, *arguments, **options)
            if name == "replace":
                self.moved(path, Path(arguments[0]))
            elif name in ("_write", "_sync", "write_new"):
                self.synced.add(path)
                self.renamed = [pair for pair in self.renamed if name != "_sync" or pair[1].parent != path]

        return step

    def moved(self, source: Path, target: Path) -> None:
        """Carry over what is known of a file, or of all in a folder, to its new name."""
        self.renamed.append((source, target))
        inside = {path for path in self.synced if path.is_relative_to(target)}
        brought = {target / path.relative_to(source) for path in self.synced if path.is_relative_to(source)}
        self.synced = (self.synced - inside) | brought

    def lose(self, root: Path, *, rename_lost: bool, content: str) -> None:
        """Leave what a machine without power may leave."""
        if rename_lost:
            for source, target in reversed(self.renamed):
                if target.exists() and source.parent.exists() and not source.exists():
                    target.rename(source)
        if content == "kept":
            return
        for path in sorted(root.rglob("*")):
            artefact = path.is_file() and path.name not in ("stamp.json", "use.json") and path.parent.name != "locks"
            if artefact and path not in self.synced:
                data = path.read_bytes()
                path.write_bytes(bytes(len(data)) if content == "zeros" else data[: len(data) // 2])


LATE = {"triton/NEW/late.cubin": b"late" * 100, "inductor/xy/cxyz.py": b"rewritten by its own engine"}


def seal_cold(root: Path) -> None:
    with Store(root).open(KEY, PARTS) as lease:
        fill(lease.folder)
        lease.seal(TOKENS)


def seal_again(root: Path) -> None:
    with Store(root).open(KEY, PARTS) as lease:
        fill(lease.folder, LATE)
        lease.seal(TOKENS)


def drop(root: Path) -> None:
    with Store(root).open(KEY, PARTS) as lease:
        lease.drop("warm_tokens_differ")
        fill(lease.folder, LATE)
        lease.seal([1])


def rebuild(root: Path) -> None:
    """Find a poisoned file, purge, and seal anew."""
    path = root / "generations" / KEY / "sm70/dense-1.zip"
    path.write_bytes(b"XX")
    seal_cold(root)


def prune(root: Path) -> None:
    Store(root).prune(max_age_s=-1)


def bring(root: Path) -> None:
    archive.import_(Store(root), root.parent / "archive.tar")


ACTS: dict[str, tuple[bool, Callable[[Path], None]]] = {
    "a first seal": (False, seal_cold),
    "a seal of what came later": (True, seal_again),
    "a drop": (True, drop),
    "a rebuild": (True, rebuild),
    "a removal": (True, prune),
    "an import": (False, bring),
}


def prepare(base: Path, before: bool) -> Path:
    """Return the cache's folder, always the same one, with a sealed generation in it or nothing."""
    root = base / "cache"
    shutil.rmtree(root, ignore_errors=True)
    if before:
        shutil.copytree(base / "template", root)
    return root


@pytest.fixture
def base() -> Iterator[Path]:
    """Make a sealed generation once, as a template and as an archive.

    In memory: a real disk would take most of the time, for thousands of folders that come and go.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        base = Path(folder)
        store = sealed(base / "cache")
        archive.export(store, KEY, base / "archive.tar")
        (base / "cache").rename(base / "template")
        yield base


def all_steps(work: Callable[[Path], None], root: Path) -> Disk:
    """Let `work` come to its end; return the steps that it took."""
    with pytest.MonkeyPatch.context() as patch:
        whole = Disk()
        whole.install(patch, root)
        work(root)
    return whole


@pytest.mark.parametrize("act", ACTS)
def test_power_may_go_before_any_step(base: Path, act: str) -> None:
    before, work = ACTS[act]
    whole = all_steps(work, prepare(base, before))
    assert len(whole.steps) > 3
    outcomes = set()
    for stop in range(len(whole.steps) + 1):
        for rename_lost, content in ((False, "kept"), (True, "half"), (False, "zeros")):
            root = prepare(base, before)
            disk = Disk(stop)
            with pytest.MonkeyPatch.context() as patch:
                disk.install(patch, root)
                with suppress(PowerLossError):
                    work(root)
            disk.lose(root, rename_lost=rename_lost, content=content if act != "a removal" else "kept")
            state = start_on_another_boot(root, f"{act}, {stop}: {disk.steps[-1:]}, {rename_lost}, {content}")
            outcomes.add(state)
            if stop == len(whole.steps):
                assert state == ("cold" if act == "a removal" else "warm"), "what was done is on the disk"
    assert "warm" in outcomes
    assert "cold" in outcomes or act == "a seal of what came later"


def start_on_another_boot(root: Path, where: str) -> str:
    """Start; whatever was left, it works, and warm is only what was sealed."""
    for generation in Store(root).generations() if root.exists() else []:
        assert not generation.in_use, where
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        another_boot(patch)
        with Store(root).open(KEY, PARTS) as lease:
            found = contents(lease.folder)
            if lease.state == "warm":
                if lease.tokens == TOKENS:
                    assert found in (ARTEFACTS, ARTEFACTS | LATE), where
                else:
                    assert (lease.tokens, found) == ([1], LATE), where
            else:
                assert (lease.state, found) == ("cold", {}), where
            state: str = lease.state
            if state == "cold":
                fill(lease.folder)
                assert lease.seal(TOKENS).sealed, where
        with Store(root).open(KEY, PARTS) as lease:
            assert lease.state == "warm", where
        Store(root).prune(max_bytes=None)
        left = sorted(path.name for path in (root / "generations").iterdir() if not path.name.startswith(".import-"))
        assert left == [KEY], where
    return state


@pytest.mark.parametrize("act", ["a first seal", "a seal of what came later", "a drop", "a rebuild"])
def test_a_process_may_be_killed_before_any_step(base: Path, act: str) -> None:
    """The machine keeps its power: nothing is lost, but what was begun is never finished."""
    before, work = ACTS[act]
    for stop in range(len(all_steps(work, prepare(base, before)).steps) + 1):
        root = prepare(base, before)
        disk = Disk(stop)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch, root)
            with suppress(PowerLossError):
                work(root)
        with Store(root).open(KEY, PARTS) as lease:
            found = contents(lease.folder)
            if lease.state == "warm":
                assert found.keys() >= (LATE if lease.tokens == [1] else ARTEFACTS).keys(), disk.steps[-1:]
                assert all(data in (ARTEFACTS.get(name), LATE.get(name)) for name, data in found.items())
            elif lease.state == "cold":
                assert found == {}
            fill(lease.folder)
            assert lease.seal(TOKENS).sealed
        with Store(root).open(KEY, PARTS) as lease:
            assert lease.state == "warm"


def start(root: Path) -> None:
    """Start after a power loss that left two files half written."""
    fill(root / "generations" / KEY, {"triton/TORN/a.cubin": b"half", "cuda/1/index": b"half"})
    with pytest.MonkeyPatch.context() as patch:
        another_boot(patch)
        Store(root).open(KEY, PARTS).close()


def test_a_start_that_is_killed_while_it_clears_up_after_a_power_loss_leaves_nothing_of_it(base: Path) -> None:
    """What the lost boot left half written must not pass for this boot's, however far the clearing came."""
    for stop in range(len(all_steps(start, prepare(base, before=True)).steps) + 1):
        root = prepare(base, before=True)
        disk = Disk(stop)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch, root)
            with suppress(PowerLossError):
                start(root)
        with pytest.MonkeyPatch.context() as patch:
            another_boot(patch)
            with Store(root).open(KEY, PARTS) as lease:
                assert (lease.state, contents(lease.folder)) == ("warm", ARTEFACTS), disk.steps[-1:]
