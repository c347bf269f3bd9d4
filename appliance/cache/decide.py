"""What a start does with the generation that it finds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from appliance.cache.records import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.cache.records import Problem
    from appliance.cache.scan import Scan
    from appliance.cache.stamp import Stamp, Use

DEATHS = 2
"""Starts in a row that may die on a generation before it has to go: one may be an accident."""

State = Literal["cold", "warm", "resumed"]


@dataclass(frozen=True)
class Found:
    """What was found under a key. `scan` is None when there is nothing there.

    `stamp` is None when it is not sealed or `stamp_problem` says why it is no stamp; `bad` is the first file that does
    not fit the stamp. `alone` tells that nobody else uses the generation.
    """

    scan: Scan | None
    stamp: Stamp | None = None
    stamp_problem: str | None = None
    use: Use | None = None
    bad: Problem | None = None
    alone: bool = True


@dataclass(frozen=True)
class Start:
    """The start that looks: its key and parts, the folder of the generation, and the kernel's boot id."""

    key: str
    parts: Mapping[str, str]
    folder: str
    boot: str


@dataclass(frozen=True)
class Decision:
    """`purge`: everything there has to go. `delete`: these files have to go, the rest is used.

    `reason` is a stable word and `detail` one line for people. `deaths` is what the record of use gets.
    """

    state: State
    reason: str
    detail: str
    purge: bool = False
    delete: tuple[str, ...] = ()
    deaths: int = 0


def decide(found: Found, start: Start) -> Decision:
    """Return what to do. Where it says to purge and somebody else uses the generation, the caller has no cache."""
    if found.scan is None:
        return Decision("cold", "new", "nothing was there")
    deaths = _deaths(found, start)
    if found.stamp_problem is not None:
        return _purge("stamp_damaged", f"stamp.json {found.stamp_problem}")
    if found.stamp is None:
        return _unsealed(found, found.scan, start, deaths)
    return _sealed(found, found.scan, found.stamp, start, deaths)


def _sealed(found: Found, scan: Scan, stamp: Stamp, start: Start, deaths: int) -> Decision:
    if stamp.key != start.key or dict(stamp.parts) != dict(start.parts):
        return _purge("stamp_damaged", f"stamp.json is that of {stamp.key}")
    if stamp.folder != start.folder:
        return _purge("moved", f"made in {stamp.folder}, and its artefacts hold that path")
    if found.bad is not None:
        return _purge("file_changed", str(found.bad))
    if deaths >= DEATHS and found.alone:
        return _purge("died_twice", f"{deaths} starts in a row died on it, although every file is as it was sealed")
    # What came after the stamp was never proven: this boot wrote it whole, of another boot nobody knows.
    beyond = [] if _same_boot(found, start) else [name for name in scan.files if name not in stamp.files]
    delete = _leftovers(found, scan, start, beyond)
    return Decision(
        "warm", "verified", f"{len(stamp.files)} files are as they were sealed", delete=delete, deaths=deaths
    )


def _unsealed(found: Found, scan: Scan, start: Start, deaths: int) -> Decision:
    if not found.alone:
        delete = _leftovers(found, scan, start, [])
        return Decision("resumed", "shared", "another engine is making it", delete=delete, deaths=deaths)
    if not scan.count and not scan.odd:
        # Whatever a start died of, it was nothing in here.
        return Decision("cold", "new", "nothing was in it")
    if scan.odd:
        return _purge("odd_file", f"{scan.odd[0]} is no regular file, and no compiler makes such")
    if not _same_boot(found, start):
        return _purge("power_lost", "not sealed before the machine started anew: files may be half written")
    if deaths >= DEATHS:
        return _purge("died_twice", f"{deaths} starts in a row died on it")
    delete = _leftovers(found, scan, start, [])
    return Decision(
        "resumed", "interrupted", "not sealed by the last start, which this boot saw", delete=delete, deaths=deaths
    )


def _leftovers(found: Found, scan: Scan, start: Start, beyond: list[str]) -> tuple[str, ...]:
    """Name what has to go from a generation that is used; while somebody else uses it, only what nobody loads."""
    always = (*scan.secret, *scan.odd)
    if not found.alone:
        return always
    volatile = () if _same_boot(found, start) else (*scan.volatile,)
    return (*beyond, *volatile, *scan.passing, *always)


def _deaths(found: Found, start: Start) -> int:
    if found.use is None:
        return 0
    # Without power everything dies: that says nothing about the generation.
    died = found.use.pending and found.alone and _same_boot(found, start)
    return found.use.deaths + died


def _same_boot(found: Found, start: Start) -> bool:
    return found.use is not None and bool(start.boot) and found.use.boot == start.boot


def _purge(reason: str, detail: str) -> Decision:
    return Decision("cold", reason, shown(detail), purge=True)
