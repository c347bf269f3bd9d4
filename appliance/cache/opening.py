"""Opening a generation for a start: look, hash, decide, and carry out what was decided."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cache import durable, scan
from appliance.cache.decide import Found, Start, decide
from appliance.cache.lease import Lease, Opened, unusable
from appliance.cache.place import Looked
from appliance.cache.records import UnusableError
from appliance.cache.stamp import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from appliance.cache.decide import Decision
    from appliance.cache.locks import Use as Hold
    from appliance.cache.place import Known, Place
    from appliance.cache.stamp import Stamp


def take(
    place: Place,
    parts: Mapping[str, str],
    hold: Hold,
    scratch: Path | None,
    seen: Callable[[int], None],
) -> Lease:
    """Return the lease of a start that holds the gate and `hold`. Raises UnusableError; see `Store.open`."""
    start = Start(place.key, parts, str(place.folder), durable.boot_id())
    alone = hold.alone()
    looked = _look(place)
    stamp = looked.stamp
    bad = None
    if stamp is not None and looked.scan is not None:
        bad = next(scan.check(place.folder, stamp.files, looked.scan.files, seen), None)
    decision = decide(Found(looked.scan, stamp, looked.stamp_problem, looked.use, bad, alone), start)
    if decision.purge and not alone:
        if not hold.locked:
            raise UnusableError("read_only", f"{place.folder} is read-only, and unfit: {decision.detail}")
        raise UnusableError(
            "broken_in_use", f"{place.key} is unfit ({decision.detail}), and another engine is using it"
        )
    warm = decision.state == "warm"
    opened = Opened(
        place=place,
        hold=hold,
        parts=parts,
        use=_use(looked.use, decision, start),
        state=decision.state,
        reason=decision.reason,
        detail=decision.detail,
        stamp=stamp if warm else None,
        known=_known(looked) if warm else {},
        alone=alone,
        rebuilt=decision.purge,
    )
    try:
        _carry_out(place, decision, opened.use, alone=alone)
    except OSError as error:
        if not warm or stamp is None:
            raise unusable(place.folder, error) from error
        if error.errno in durable.FULL:
            opened.detail += "; the disk is full, so that nothing can be added"
        else:
            opened.private = _private_copy(place, stamp, scratch)
            opened.reason = "verified_read_only"
            opened.detail += "; they cannot be added to, so this start has a copy of its own"
    return Lease(opened)


def _look(place: Place) -> Looked:
    try:
        return place.look()
    except OSError as error:
        # Another user's, perhaps; in a folder of ours it can still be put away.
        return Looked(scan.Scan(), stamp_problem=f"cannot be reached: {error.filename} ({error.strerror})")


def _use(before: Use | None, decision: Decision, start: Start) -> Use:
    now = time.time()
    drops = (before.drops if before else 0) + decision.purge
    created = before.created_at if before and decision.state != "cold" else now
    return Use(
        key=start.key,
        boot=start.boot,
        pid=os.getpid(),
        created_at=created,
        used_at=now,
        deaths=decision.deaths,
        drops=drops,
        ready=decision.state != "cold" and before is not None and before.ready,
        parts=start.parts,
    )


def _known(looked: Looked) -> Known:
    if looked.stamp is None or looked.scan is None:
        return {}
    return {name: (stamped, looked.scan.files[name]) for name, stamped in looked.stamp.files.items()}


def _carry_out(place: Place, decision: Decision, use: Use, *, alone: bool) -> None:
    """Do what was decided, the record of use last: a power loss before it leaves another boot's record, or none."""
    if decision.purge:
        place.put_away()
    place.delete(decision.delete)
    place.make()
    if alone:
        place.write_use(use)
    elif not os.access(place.folder, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(place.folder))


def _private_copy(place: Place, stamp: Stamp, scratch: Path | None) -> Path:
    """Copy the stamped files, which were just verified. Raises UnusableError."""
    try:
        copy = Path(tempfile.mkdtemp(prefix="appliance-cache-", dir=scratch))
    except OSError as error:
        raise unusable(scratch or Path(tempfile.gettempdir()), error) from error
    try:
        for name in (*scan.SUBFOLDERS, *(str(Path(name).parent) for name in stamp.files)):
            (copy / name).mkdir(parents=True, exist_ok=True)
        for name in stamp.files:
            shutil.copy(place.folder / name, copy / name, follow_symlinks=False)
    except OSError as error:
        shutil.rmtree(copy, ignore_errors=True)
        raise unusable(copy.parent, error) from error
    return copy
