"""Generations on disk: opened for a start, sealed at its first ready, verified, pruned."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.cache import durable, locks, scan
from appliance.cache.key import key_of
from appliance.cache.lease import Lease, not_sealed, stamp_files, unusable
from appliance.cache.opening import take
from appliance.cache.place import IMPORTED, REMOVED, Place, erase
from appliance.cache.records import Generation, Problem, Removed, Sealed, UnusableError, shown
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from appliance.cache.place import Looked
    from appliance.cache.stamp import Stamp

__all__ = ["FOLDERS", "Generation", "Lease", "Problem", "Removed", "Sealed", "Store", "UnusableError"]

FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
"""The engine's variables that name a folder of compiled artefacts, with their place in a generation."""

KEY = re.compile(r"[0-9a-f]{32}")

PATIENCE = 120.0
"""Seconds that a start waits while its generation is verified, exported or opened by another."""

IMPORT_AGE = 86400.0
"""Seconds after which an import that is not done counts as broken off."""


class Store:
    """The compile cache under `root`, the folder of the setting cache_dir. Nothing is created before `open`."""

    def __init__(self, root: Path, *, patience: float = PATIENCE) -> None:
        self.root = root
        self._patience = patience

    @property
    def folder(self) -> Path:
        """Where the generations are."""
        return self.root / "generations"

    def generations(self) -> list[Generation]:
        """Return all generations, the last used first; broken ones with their problem. Reads no artefact."""
        found = [self._describe(entry) for entry in self._entries() if not entry.name.startswith(".")]
        return sorted(found, key=lambda generation: generation.used_at or 0.0, reverse=True)

    def find(self, key: str) -> Generation:
        """Return one generation. Raises CheckError when it is not there."""
        self._known(key)
        return self._describe(self.folder / key)

    def open(
        self,
        key: str,
        parts: Mapping[str, str],
        *,
        scratch: Path | None = None,
        seen: Callable[[int], None] = scan.nothing_seen,
    ) -> Lease:
        """Take the generation of `key` for a start, and decide whether it is warm, resumed or cold.

        Hashes every stamped file; `seen` gets each number of bytes read. A read-only volume with a sealed generation
        is warm from a private copy under `scratch` (the system's temporary folder when None), which `close` removes;
        programs are loaded from it, so it must not be mounted `noexec`. Waits while the generation is verified,
        exported or opened by another. Raises UnusableError when there can be no cache.
        """
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key")
        self._prepare()
        with locks.gate(self.root, key, self._patience) as held:
            if not held:
                raise UnusableError("busy", f"{key} is being read whole by another for over {self._patience:.0f} s")
            hold = locks.use(self.root, key)
            try:
                return take(Place(self.root, key), parts, hold, scratch, seen)
            except BaseException:
                hold.release()
                raise

    def remove(self, key: str) -> Removed:
        """Remove a generation. Raises CheckError when it is in use or is not there, or the disk refuses."""
        self._known(key)
        size = self._describe(self.folder / key).size_bytes
        with self._alone(key) as alone:
            if not alone:
                raise CheckError(f"generation {key} is in use; stop its engine first")
            try:
                Place(self.root, key).put_away()
            except FileNotFoundError:
                raise CheckError(f"generation {key} was removed just now") from None
            except OSError as error:
                raise CheckError(f"generation {key} cannot be removed: {error.strerror}") from error
        return Removed(key, size, "asked")

    def prune(
        self,
        max_age_s: float | None = None,
        max_bytes: int | None = None,
        keep: Collection[str] = (),
        *,
        dry_run: bool = False,
    ) -> list[Removed]:
        """Remove what was not used for `max_age_s`, then the least recently used until `max_bytes` are kept.

        Never one in use, nor one whose key is in `keep`, nor what the cache did not make; what an interrupted removal
        or import left goes too. One that cannot be removed is left out of the answer.
        """
        removed = [*self._left_over(dry_run=dry_run)]
        now = time.time()
        generations = self.generations()
        total = sum(generation.size_bytes for generation in generations)
        for generation in reversed(generations):
            # A clock that was set back makes a time of use lie ahead: that is no age.
            age = max(0.0, now - (generation.used_at or 0.0))
            old = max_age_s is not None and age > max_age_s
            large = max_bytes is not None and total > max_bytes
            spared = generation.in_use or generation.key in keep or not KEY.fullmatch(generation.key)
            if spared or not (old or large):
                continue
            if not dry_run:
                try:
                    self.remove(generation.key)
                except CheckError:
                    continue
            total -= generation.size_bytes
            removed.append(Removed(generation.key, generation.size_bytes, "age" if old else "size"))
        return removed

    def verify(self, key: str, seen: Callable[[int], None] = scan.nothing_seen) -> list[Problem]:
        """Hash every stamped file of a sealed generation; return what is wrong, nothing when all is well.

        Raises CheckError when there is no such generation, or it is not sealed.
        """
        self._known(key)
        with self._gated(key):
            looked = self._look(key)
            if looked.stamp_problem is not None:
                return [Problem("stamp.json", looked.stamp_problem)]
            if looked.stamp is None or looked.scan is None:
                raise CheckError(f"generation {key} is not sealed, so there is nothing to hold it against")
            place, stamp, found = Place(self.root, key), looked.stamp, looked.scan
            return [*misfits(place, stamp, found), *scan.misread(place.folder, stamp.files, found.files, seen)]

    def seal(self, key: str) -> Sealed:
        """Seal a generation that no engine uses, as it is.

        For one whose disk was full when its engine got ready. Without tokens: the next start cannot compare them. Not
        one that no engine got ready on, nor one whose last start died on it or that another boot made: nobody knows
        whether its files are whole.
        """
        self._known(key)
        with self._alone(key) as alone:
            if not alone:
                return Sealed(sealed=False, reason="in_use", text=f"generation {key} is in use; its start seals it")
            looked = self._look(key)
            use = looked.use
            if looked.stamp_problem is not None or (looked.scan is not None and looked.scan.odd):
                return Sealed(sealed=False, reason="broken", text=f"generation {key} is broken; remove it")
            whole = use is not None and use.ready and not use.pending
            if use is None or not whole or not use.boot or use.boot != durable.boot_id():
                why = "no engine got ready on it, its last start died on it, or the machine was started since"
                return Sealed(
                    sealed=False, reason="incomplete", text=f"generation {key} is not known to be whole: {why}"
                )
            parts = looked.stamp.parts if looked.stamp else use.parts
            try:
                stamp_files(Place(self.root, key), {}, parts, use.created_at, None)
            except OSError as error:
                return not_sealed(key, error)
        return Sealed(sealed=True)

    @contextmanager
    def sealed(self, key: str) -> Iterator[Stamp]:
        """Hold a sealed generation still, and give its stamp. Raises CheckError when it is not there or not sealed."""
        self._known(key)
        with self._gated(key):
            looked = self._look(key)
            if looked.stamp is None:
                raise CheckError(
                    f"generation {key} is not sealed{(looked.stamp_problem and ': its stamp is damaged') or ''}"
                )
            yield looked.stamp

    @contextmanager
    def vacant(self, key: str) -> Iterator[Stamp | None]:
        """Hold the place of a generation that is to come; gives the stamp of the one that is there, None for none.

        Raises CheckError when there is one that is not sealed, or another decides about it.
        """
        self._prepare()
        with self._gated(key):
            looked = self._look(key)
            if looked.scan is not None and looked.stamp is None:
                raise CheckError(f"generation {key} is there already and not sealed; remove it first")
            yield looked.stamp

    def _prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UnusableError("not_a_folder", f"{self.root} is no folder; cache_dir wants one") from None
        except OSError as error:
            raise unusable(self.root, error) from error
        if not stat.S_ISDIR(self.folder.lstat().st_mode):
            raise UnusableError("not_a_folder", f"{self.folder} is a link; the cache follows none, so remove it")

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckError(f"{self.folder} cannot be read: {error.strerror}") from error

    def _known(self, key: str) -> None:
        """Raise CheckError unless there is something of this name that the cache may have made."""
        if not KEY.fullmatch(key) or not os.path.lexists(self.folder / key):
            raise CheckError(f'no generation "{key}" in {self.folder}; `appliance cache list` shows them')

    def _look(self, key: str) -> Looked:
        try:
            return Place(self.root, key).look()
        except OSError as error:
            raise CheckError(f"{error.filename} cannot be read: {error.strerror}") from error

    def _describe(self, folder: Path) -> Generation:
        key = folder.name
        if not KEY.fullmatch(key):
            return Generation(shown(key), "broken", problem="is not of the cache's making; remove it by hand")
        try:
            looked = Place(self.root, key).look()
            used = looked.use.used_at if looked.use else folder.lstat().st_mtime
        except FileNotFoundError:
            return Generation(key, "broken", problem="was removed just now")
        except OSError as error:
            return Generation(key, "broken", problem=shown(f"cannot be read: {error.filename} ({error.strerror})"))
        stamp, use, found = looked.stamp, looked.use, looked.scan or scan.Scan()
        problem = looked.stamp_problem and str(Problem("stamp.json", looked.stamp_problem))
        if stamp is not None and problem is None:
            problem = next((str(wrong) for wrong in misfits(Place(self.root, key), stamp, found)), None)
        parts = stamp.parts if stamp else use.parts if use else {}
        return Generation(
            key,
            "broken" if problem else "sealed" if stamp else "building",
            parts={shown(name): shown(part) for name, part in parts.items()},
            size_bytes=found.size_bytes,
            files=found.count,
            created_at=stamp.created_at if stamp else use.created_at if use else None,
            used_at=used,
            sealed_at=stamp.sealed_at if stamp else None,
            in_use=locks.in_use(self.root, key),
            tokens=stamp is not None and stamp.tokens is not None,
            problem=problem,
        )

    @contextmanager
    def _gated(self, key: str) -> Iterator[None]:
        """Hold the gate of `key`. Raises CheckError when another keeps it."""
        with locks.gate(self.root, key, self._patience) as held:
            if not held:
                raise CheckError(f"generation {key} is being read whole or opened by another; try again")
            yield

    @contextmanager
    def _alone(self, key: str) -> Iterator[bool]:
        """Hold the gate of `key` without waiting; gives whether nobody else uses it or decides about it."""
        with locks.gate(self.root, key) as held:
            if not held:
                yield False
                return
            hold = locks.use(self.root, key)
            try:
                yield hold.alone() or not hold.locked
            finally:
                hold.release()

    def _left_over(self, *, dry_run: bool) -> Iterator[Removed]:
        for entry in self._entries():
            mark = next((mark for mark in (REMOVED, IMPORTED) if entry.name.startswith(mark)), None)
            try:
                if mark is None or (mark == IMPORTED and time.time() - entry.lstat().st_mtime < IMPORT_AGE):
                    continue
                size = scan.scan(entry).size_bytes
            except OSError:
                continue
            if not dry_run:
                erase(entry)
            if dry_run or not os.path.lexists(entry):
                yield Removed(entry.name.removeprefix(mark).partition("-")[0], size, "left_over")


def misfits(place: Place, stamp: Stamp, found: scan.Scan) -> Iterator[Problem]:
    """Yield what is wrong with a sealed generation as far as it shows without reading an artefact."""
    if stamp.key != place.key or key_of(stamp.parts) != place.key:
        yield Problem("stamp.json", f"is that of {stamp.key}")
    if stamp.folder != str(place.folder):
        yield Problem("stamp.json", f"says that it was made in {stamp.folder}, and its artefacts hold that path")
    yield from (Problem(name, "is no regular file, and no compiler makes such") for name in found.odd)
    yield from scan.misfits(stamp.files, found.files)
