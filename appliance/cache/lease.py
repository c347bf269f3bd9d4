"""A generation in use by one start."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from appliance.cache import durable, locks, scan
from appliance.cache.decide import DEATHS
from appliance.cache.records import Sealed, UnusableError
from appliance.cache.stamp import Stamp, Use

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from appliance.cache.decide import State
    from appliance.cache.place import Known, Place

SEAL_PATIENCE = 30.0
"""Seconds that a seal waits for whoever opens or verifies the same generation."""


@dataclass
class Opened:
    """What `Store.open` found and did, for the lease that it gives. `private` is the copy of a read-only generation."""

    place: Place
    hold: locks.Use
    parts: Mapping[str, str]
    use: Use
    state: State
    reason: str
    detail: str
    stamp: Stamp | None
    known: Known
    alone: bool
    rebuilt: bool
    private: Path | None = None


class Lease:
    """A generation in use by this process. Keep it as long as an engine runs on it; close it at the end.

    `folder` is where the engine writes: see FOLDERS, each is there. `state` is `warm` when every stamped file was
    verified, `resumed` when an unsealed generation goes on, `cold` when it is empty. `reason` is a stable word: `new`,
    `verified`, `verified_read_only`, `interrupted`, `shared`, or why the old one was dropped: `file_changed`,
    `power_lost`, `died_twice`, `stamp_damaged`, `odd_file`, `moved`, or what `drop` was given. `detail` is one line for
    people, with the first bad file. `rebuilt` is true when something was dropped, by `open` or by `drop`.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._use = opened.use
        self._closed = False
        self.key = opened.place.key
        self.parts = dict(opened.parts)
        self.folder = opened.private or opened.place.folder
        self.state: State = opened.state
        self.reason = opened.reason
        self.detail = opened.detail
        self.rebuilt = opened.rebuilt

    @property
    def tokens(self) -> list[int] | None:
        """The greedy tokens in the stamp, None when it has none or the generation is not sealed."""
        stamp = self._opened.stamp
        return list(stamp.tokens) if stamp is not None and stamp.tokens is not None else None

    @property
    def drops(self) -> int:
        """How often in a row what was in this generation had to go; a warm start that gets ready ends the row."""
        return self._use.drops

    def seal(self, tokens: list[int] | None = None) -> Sealed:
        """Stamp what is there now. Call it at each first ready, in every state, and again at a clean end.

        A ready engine proves the generation, so deaths are forgotten. Files that came since the last stamp are hashed
        and join it; a warm generation with none costs nothing. `tokens` go into a stamp that has none yet. Never
        raises for the disk: a full or read-only one is told in the answer, and serving goes on.
        """
        opened = self._opened
        if opened.private is not None:
            return Sealed(sealed=True)
        drops = 0 if self.state == "warm" else self._use.drops
        self._use = replace(self._use, pending=False, deaths=0, drops=drops, ready=True, used_at=time.time())
        # Before the hashes: a process that is killed while it takes them has served, and counts as no death.
        self._write_use()
        try:
            with locks.gate(opened.place.root, self.key, SEAL_PATIENCE) as held:
                if not held:
                    return Sealed(sealed=False, reason="busy", text=f"{self.key} is being read whole by another")
                opened.stamp, opened.known = stamp_files(
                    opened.place, opened.known, self.parts, self._use.created_at, tokens
                )
        except UnusableError as error:
            return Sealed(sealed=False, reason=error.reason, text=str(error))
        except OSError as error:
            return not_sealed(self.key, error)
        return Sealed(sealed=True)

    def drop(self, reason: str) -> None:
        """Empty the generation; the lease goes on as `cold` with `reason`. No engine of this lease may run meanwhile.

        Raises UnusableError, `shared` when another engine holds it too: this start then has no cache.
        """
        opened = self._opened
        if opened.private is not None:
            raise UnusableError("read_only", f"{opened.place.folder} cannot be written, so it cannot be rebuilt")
        with locks.gate(opened.place.root, self.key, SEAL_PATIENCE) as held:
            if not held or not opened.hold.alone():
                raise UnusableError("shared", f"{self.key} is in use by another engine, so it cannot be rebuilt")
            try:
                opened.place.put_away()
                opened.place.make()
                self._use = replace(
                    self._use, pending=True, deaths=0, drops=self._use.drops + 1, ready=False, created_at=time.time()
                )
                opened.place.write_use(self._use)
            except OSError as error:
                raise unusable(opened.place.folder, error) from error
        opened.stamp, opened.known = None, {}
        self.state, self.reason, self.rebuilt = "cold", reason, True
        self.detail = "it was emptied, and is made anew"

    def died(self) -> None:
        """Count an engine that ended before it was ready; call it before the next one starts on this lease.

        After the second one in a row the generation is dropped (`died_twice`), whatever its hashes say. Raises
        UnusableError as `drop` does.
        """
        self._use = replace(self._use, pending=True, deaths=self._use.deaths + 1)
        if self._use.deaths >= DEATHS:
            self.drop("died_twice")
        else:
            self._write_use()

    def close(self) -> None:
        """Let go of it. What was not sealed stays as it is, and the next start decides. May be called twice.

        A start that is closed counts as ended by intent; a process that is killed closes nothing and counts as died.
        """
        if self._closed:
            return
        self._closed = True
        opened = self._opened
        try:
            if opened.private is not None:
                shutil.rmtree(opened.private, ignore_errors=True)
                return
            with suppress(OSError):
                opened.place.delete(scan.scan(opened.place.folder).secret)
            self._use = replace(self._use, pending=False, used_at=time.time())
            self._write_use()
        finally:
            opened.hold.release()

    def _write_use(self) -> None:
        # Another engine that came first has its own record there, and a full disk must not end a start.
        if self._opened.alone and self._opened.private is None:
            with suppress(OSError):
                self._opened.place.write_use(self._use)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stamp_files(
    place: Place, known: Known, parts: Mapping[str, str], created_at: float, tokens: list[int] | None
) -> tuple[Stamp, Known]:
    """Hash what is new, and write the stamp if it says anything new; behind the gate. Raises OSError."""
    # Another engine on the same generation may have sealed it since.
    old = place.look().stamp
    hashed = place.take_hashes(known)
    files = {name: stamped for name, (stamped, _) in hashed.items()}
    kept = old.tokens if old is not None else None
    stamp = Stamp(
        key=place.key,
        parts=parts,
        folder=str(place.folder),
        files=files,
        created_at=old.created_at if old is not None else created_at,
        sealed_at=time.time(),
        tokens=kept if kept is not None or tokens is None else tuple(tokens),
    )
    if old is not None and replace(old, sealed_at=stamp.sealed_at) == stamp:
        return old, hashed
    place.write_stamp(stamp)
    return stamp, hashed


def not_sealed(key: str, error: OSError) -> Sealed:
    """Say why a stamp could not be written."""
    reason = (
        "disk_full" if error.errno in durable.FULL else "read_only" if error.errno in durable.UNWRITABLE else "failed"
    )
    return Sealed(
        sealed=False, reason=reason, text=f"{key} is not sealed: {error.strerror}; free space or make it writable"
    )


def unusable(folder: Path, error: OSError) -> UnusableError:
    """Say why a start can have no cache in `folder`."""
    if error.errno in durable.FULL:
        return UnusableError("disk_full", f"{folder} cannot be written ({error.strerror}); free space there")
    if error.errno in durable.UNWRITABLE:
        return UnusableError(
            "read_only", f"{folder}: user {os.getuid()} cannot write ({error.strerror}), and nothing there is sealed"
        )
    return UnusableError("not_writable", f"{folder} cannot be used ({error.strerror})")
