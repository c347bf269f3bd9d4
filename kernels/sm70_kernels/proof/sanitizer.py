"""What compute-sanitizer's racecheck found, kernel by kernel, and whether it can see what it judges. Pure.

Racecheck does not say who launched what, and all specialisations of a kernel have one entry. So the process under it
says before each launch what it launches (`announcement`), and waits until the launch has ended. The control kernel
tells what a report is worth: it hands data over at named barriers, right by inspection.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm70_kernels.registry import registered

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation

CONTROL = "barrier_control"
"""The control kernel: one specialisation waits at named barriers, one at the block's."""

_NAMED = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.sync(?:\.aligned)?\s+(?!\s|0\s*;)")
_LAUNCH = re.compile(r"^launch (\S+) (\w+) (named|other)$")
_HAZARD = re.compile(r"Race reported between .* at (\w+)\+0x")
_DONE = re.compile(r"^\d+ of \d+ cases, .* (\d+) results wrong$")


def announcement(spec: Specialisation, ptx: str) -> str:
    """Return the line that says which kernel is about to be launched, and whether it waits at named barriers."""
    return f"launch {spec.name} {spec.kernel.entry} {'named' if _NAMED.search(ptx) else 'other'}"


@dataclass(slots=True)
class Report:
    """The hazards of one run by specialisation; `unowned` ones fit no launch. `done` is the run's own last line."""

    hazards: Counter[str] = field(default_factory=Counter)
    unowned: int = 0
    launched: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    done: str = ""
    wrong: int = 0


def read(log: str) -> Report:
    """Read the log of one run of racecheck (analysis mode)."""
    report = Report()
    name = entry = ""
    for line in log.splitlines():
        if launch := _LAUNCH.match(line):
            name, entry = launch[1], launch[2]
            report.launched.add(name)
            if launch[3] == "named":
                report.named.add(name)
        elif done := _DONE.match(line):
            # What is told only now may be of any launch.
            report.done, report.wrong, name, entry = line, int(done[1]), "", ""
        elif hazard := _HAZARD.search(line):
            if name and hazard[1] == entry:
                report.hazards[name] += 1
            else:
                report.unowned += 1
    return report


def verdict(control: Report, run: Report, status: int) -> str:
    """Return racecheck's verdict for the record; it begins with `failed` unless nothing speaks against the kernels.

    `control` is the run of the control kernel alone, `status` the exit status of `run` (124: its time was up).
    """
    found = run.hazards.total() + run.unowned
    done = run.done or "its time was up"
    if run.wrong or (status != 124 and not run.done) or status not in (0, 9, 124):
        return f"failed: status {status}, {found} hazards, {done}"
    if not found:
        return f"clean: {done}" if run.done and status == 0 else f"not finished: no hazard until {done}"
    named, block = _controls()
    at_named, at_block = control.hazards[named], control.hazards[block]
    others = sorted(run.hazards.keys() - run.named)
    told = f"{found} hazards, all in kernels that use named barriers ({len(run.hazards)} of {len(run.named)} that ran)"
    if run.unowned or control.unowned:
        return f"failed: {found} hazards, {run.unowned + control.unowned} of them of no known launch; {done}"
    if others:
        return f"failed: {found} hazards, some in kernels without named barriers: {', '.join(others)}; {done}"
    if not at_named:
        return f"failed: {told}, and none in the control kernel {named}; {done}"
    if at_block or block not in control.launched:
        return f"failed: {told}; the control with the block's barrier has {at_block} hazards or did not run; {done}"
    return (
        f"{told}; the control kernel {named}, correct by construction, is reported too ({at_named}), and "
        f"with the block's barrier in its place ({block}) it is not: this tool cannot see named barriers; "
        f"{done}"
    )


def _controls() -> tuple[str, str]:
    """Return the names of the control kernel's specialisations, the one with named barriers first."""
    found = {spec.constants["NAMED"]: spec.name for spec in registered() if spec.kernel.name == CONTROL}
    return found[1], found[0]
