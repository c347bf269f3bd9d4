"""What the compile cache holds, read in a thread: a scrape must not wait for a walk over thousands of files."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.cache.store import Generation, Store
from appliance.errors import CheckError
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import PlanRecord
from appliance.sidecar.background import Periodic
from appliance.sidecar.records import Unavailable

if TYPE_CHECKING:
    from appliance.sidecar.options import Options

EVERY_S = 15.0

FRESH_S = 1.0
"""A look younger than this answers for another."""


@dataclass(frozen=True)
class Look:
    """The cache at one moment. `disk_free` and `disk_total` are bytes of its volume; `problem` says why it is unknown.

    `start` is cache.json: what the cache did for the engine that runs.
    """

    at: float
    folder: Path | None = None
    generations: tuple[Generation, ...] = ()
    disk_free: int | None = None
    disk_total: int | None = None
    start: CacheStart | None = None
    problem: str | None = None

    @property
    def current(self) -> str | None:
        """The key of the running engine's generation."""
        return None if self.start is None else self.start.key

    def find(self, key: str) -> Generation | None:
        """Return the generation of `key`."""
        return next((one for one in self.generations if one.key == key), None)


class CacheState:
    """Looks in a thread of its own, and when it is asked to."""

    def __init__(self, options: Options) -> None:
        self._run_dir = options.run_dir
        self._folder = options.cache_dir
        self.latest: Look | None = None
        self.thread = Periodic("look-into-the-cache", EVERY_S, self.look)

    def look(self) -> None:
        """Look now; may take as long as the disk does."""
        self.latest = self._look()

    def fresh(self) -> Look:
        """Return a look that is about now."""
        latest = self.latest
        if latest is None or time.monotonic() - latest.at > FRESH_S:
            latest = self.latest = self._look()
        return latest

    def store(self) -> Store:
        """Return the store. Raises Unavailable when nobody said where it is."""
        folder = self.folder()
        if folder is None:
            raise Unavailable(f"there is no {rundir.PLAN} that names the cache's folder, and no APPLIANCE_CACHE_DIR")
        return Store(folder)

    def folder(self) -> Path | None:
        """Return the cache's folder: the sidecar's own setting, else the plan's."""
        if self._folder is not None:
            return self._folder
        value = (PlanRecord.read(self._run_dir) or PlanRecord()).setting("cache_dir")
        return Path(value) if isinstance(value, str) and value.startswith("/") else None

    def _look(self) -> Look:
        at, start = time.monotonic(), CacheStart.read(self._run_dir)
        try:
            store = self.store()
            generations = tuple(store.generations())
            disk = shutil.disk_usage(_existing(store.root))
        except Unavailable as error:
            return Look(at, start=start, problem=str(error))
        except CheckError as error:
            return Look(at, self.folder(), start=start, problem=str(error))
        except OSError as error:
            folder = self.folder()
            return Look(at, folder, start=start, problem=f"{folder} cannot be read: {error.strerror}")
        return Look(at, store.root, generations, disk.free, disk.total, start)


def _existing(folder: Path) -> Path:
    """The nearest folder that is there: the cache's own comes with its first start."""
    return next(each for each in (folder, *folder.parents) if each.exists())
