"""The one list of kernel families. A family is a folder of this package, and a line here is all that registers it.

Each folder has those of these files that it needs; whoever wants one kind asks `modules` for it:

    table.py      SPECIALISATIONS, and which shape gets which; imports no torch
    operator.py   torch.ops.sm70.*
    pack.py       checkpoint order to fragment order
    reference.py  plain torch
    cases.py      cases(scope): shapes for the suite, the self-test and the benchmark; imports no torch
    subject.py    SUBJECTS: inputs, gates and bytes moved, for the proof
    predict.py    launches(step): grid and buffers of a step's launches, for the predicting model; imports no torch
    tune.py       trials(ranks, device): candidates to time on the card; tune(…) and ROWS where there is a choice
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FAMILIES: tuple[str, ...] = ("device_checks", "dense", "norm", "activation", "attention", "gdn")
"""In the order in which their kernels are built, proven and printed."""


def modules(file: str) -> Iterator[ModuleType]:
    """Yield the module `file` (`table`, `subject`, ...) of each family that has it, in the list's order."""
    for family in FAMILIES:
        name = f"{__package__}.{family}.{file}"
        if importlib.util.find_spec(name) is not None:
            yield importlib.import_module(name)
