"""Time what every family has to choose from on the card at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels import families
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable


def tune(ranks: int, device: torch.device, report: Callable[[str], None]) -> Record:
    """Return the times of every family's candidates for the shapes of a rank of `ranks`.

    `report` is given a line for each choice. Raises KernelError when a kernel cannot be had, RuntimeError when a
    candidate's bits differ from those of the table's first.
    """
    sections: dict[str, tuple[Any, ...]] = {}
    for family in families.modules("tune"):
        sections |= family.tune(ranks, device, report)
    return Record(torch.cuda.get_device_name(device), source_hash(), sections)


def chosen(record: Record) -> int:
    """Return how many choices a record has: its rows with an index `chosen`."""
    return sum(hasattr(row, "chosen") for rows in record.sections.values() for row in rows)
