"""Reading the run directory for an answer that needs a record: there it is, or a reason why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from appliance import __version__, rundir
from appliance.health import judge
from appliance.rundir.phase import Phase
from appliance.rundir.plan import PlanRecord
from appliance.sidecar.answers import Acceleration, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"model": Problem, "description": "Not known yet, or not readable; the reason says which."}
}
"""What an endpoint over a record documents besides its answer."""


class Unavailable(Exception):  # noqa: N818 - answered with 503, not an error of the sidecar
    """The answer is not known; the text is the reason."""


def read(run_dir: Path, name: str, build: Callable[[dict[str, Any]], T], missing: str) -> T:
    """Return what `build` makes of the record `name`.

    Raises Unavailable: with `missing` when the file is not there, else saying that it cannot be read.
    """
    record = rundir.read(run_dir, name)
    if record is None:
        raise Unavailable(missing if not (run_dir / name).exists() else f"{name} is not readable as a JSON object")
    try:
        return build(record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(
            f"{name} does not have the form that appliance {__version__} writes ({type(error).__name__}); "
            "engine and sidecar must be of one version"
        ) from error


def read_plan(run_dir: Path, build: Callable[[PlanRecord], T]) -> T:
    """Return what `build` makes of plan.json. Raises Unavailable."""
    missing = f"there is no {rundir.PLAN}: the appliance has not started on this folder"
    return read(run_dir, rundir.PLAN, lambda plan: build(PlanRecord.from_json(plan)), missing)


def given(value: T | None) -> T:
    """Return a field that an answer cannot do without. Raises TypeError where the record lacks it."""
    if value is None:
        raise TypeError("a field is missing from the record, or is of another type")
    return value


def is_report(record: object) -> TypeGuard[dict[str, Any]]:
    """Whether this is an acceleration report that can be answered with."""
    if not isinstance(record, dict):
        return False
    try:
        Acceleration.model_validate({**record, "age_s": 0.0, "stale": False, "stale_reason": None, "source": "engine"})
    except (TypeError, ValueError):
        return False
    return True


def living_phase(run_dir: Path, now: float) -> Phase | None:
    """Return phase.json, or None when no living guardian stands behind it. `now` is on rundir.clock()."""
    phase = Phase.read(run_dir)
    if phase is None or phase.at is None or not -judge.CLOCK_SLACK_S <= now - phase.at <= judge.GUARDIAN_FRESH_S:
        return None
    return phase
