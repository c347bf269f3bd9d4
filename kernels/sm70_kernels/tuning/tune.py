"""Time what every family has to choose from on the card at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels import families
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from sm70_kernels.tuning.trial import Trial


def tune(ranks: int, device: torch.device, report: Callable[[str], None], *, compiling: bool = False) -> Record:
    """Return the times of every family's candidates for the shapes of a rank of `ranks`.

    With `compiling` families try kernels that must be compiled first, too: minutes. `report` is given a line for each
    choice. Raises KernelError when a kernel cannot be had, RuntimeError when a
    candidate's bits differ from those of the table's first.
    """
    sections: dict[str, tuple[Any, ...]] = {}
    for family in _choosing():
        sections |= family.tune(ranks, device, report, compiling=compiling)
    return Record(torch.cuda.get_device_name(device), source_hash(), sections)


def _choosing() -> Iterator[ModuleType]:
    return (family for family in families.modules("tune") if hasattr(family, "ROWS"))


def trials(ranks: int, device: torch.device) -> Iterator[Trial]:
    """Yield every family's trials for the shapes of a rank of `ranks`, one after another: each holds its weights."""
    for family in families.modules("tune"):
        yield from family.trials(ranks, device)


def chosen(record: Record) -> int:
    """Return how many choices a record has: its rows with an index `chosen`."""
    return sum(hasattr(row, "chosen") for rows in record.sections.values() for row in rows)
