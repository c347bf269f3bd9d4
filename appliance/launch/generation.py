"""Which generation of the compile cache a start will use, told without opening it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.cache.facts import gather
from appliance.cache.key import key_of, parts_of
from appliance.cache.store import Store
from appliance.errors import CheckError
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.plan import Plan


def describe(plan: Plan, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return `key`, `folder` and `parts`, or `problem` where there is no key yet. Creates nothing.

    `environ` is what the engine will inherit.
    """
    record = PlanRecord.from_json(plan.to_json())
    try:
        parts = parts_of(record, gather(record, environ), environ)
    except CheckError as error:
        return {"key": None, "folder": None, "parts": None, "problem": str(error)}
    key = key_of(parts)
    folder = Store(Path(plan.setting("cache_dir"))).folder / key
    return {"key": key, "folder": str(folder), "parts": parts, "problem": None}
