"""Whether a checkpoint is where the plan wants it, whole, and of the planned kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from appliance.doctor.check import Check, from_error
from appliance.errors import ApplianceError
from appliance.models import place, serving
from appliance.models.checkpoint import inspect

if TYPE_CHECKING:
    from appliance.launch.plan import PlannedModel


def model(name: str, planned: PlannedModel, *, offline: bool) -> Check:
    """Judge `planned` by what is in its folder now; hashes are `appliance models verify`'s work.

    A checkpoint that a start would fetch or convert is no failure, unless it must be fetched and may not be.
    """
    folder = Path(planned.folder)
    wanted = f"a whole {planned.kind} checkpoint"
    if planned.origin == "folder" or place.is_there(folder):
        try:
            found = inspect(folder)
            serving.check(folder, planned.needs)
        except ApplianceError as error:
            return from_error(name, name, error, "download it again, or name another folder")
        if found.kind != planned.kind:
            todo = "choose another profile or another checkpoint"
            return Check(name, name, "fail", f"{folder} is {found.kind}", wanted, todo)
        return Check(name, name, "ok", f"{folder}: {planned.kind}, whole", wanted)
    if planned.origin == "package":
        return Check(name, name, "ok", f"{planned.repository} is converted into {folder} at the first start", wanted)
    source = f"{planned.repository} at {(planned.revision or 'no revision')[:12]}"
    if offline:
        todo = f"fetch it on a machine with a network (`appliance models fetch`) and copy its folder to {folder}"
        return Check(name, name, "fail", f"{source} is not here, and offline was asked for", wanted, todo)
    return Check(name, name, "ok", f"{source} is downloaded into {folder} at the first start", wanted)
