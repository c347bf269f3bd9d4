"""The tuning record: what was timed on a card, as JSON. Each family's `tune.py` says what its sections hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sm70_kernels import families
from sm70_kernels.registry import source_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 2

Sections: TypeAlias = "Mapping[str, tuple[Any, ...]]"
"""Rows by section, each an instance of the dataclass that a family's `ROWS` names for it."""


@dataclass(frozen=True, slots=True)
class Record:
    """What was timed on a `card`, with the kernels of `source_hash`."""

    card: str
    source_hash: str
    sections: Sections


def row_types() -> dict[str, type[Any]]:
    """Return the dataclass of each section's rows, of all families."""
    found: dict[str, type[Any]] = {}
    for family in families.modules("tune"):
        for section, row in family.ROWS.items():
            assert section not in found, f"two families have a section {section} in the tuning record"
            found[section] = row
    return found


def dump(record: Record) -> str:
    """Return the record as JSON text."""
    sections = {name: [asdict(row) for row in rows] for name, rows in record.sections.items()}
    head = {"schema": SCHEMA, "card": record.card, "source_hash": record.source_hash}
    return json.dumps(head | sections, indent=1) + "\n"


def parse(text: str) -> Record:
    """Return the record that `dump` wrote. Raises ValueError, one line, when it is none."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("schema") != SCHEMA:
            raise ValueError(f"not a tuning record of schema {SCHEMA}")
        sections = {name: tuple(row(**_tuples(each)) for each in found.pop(name)) for name, row in row_types().items()}
        return Record(sections=sections, **found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tuning record ({type(error).__name__}: {error})") from error


def check(record: Record, card: str) -> None:
    """Raise ValueError, one line, for a record of another card or of other kernels than this tree's."""
    if record.card != card:
        raise ValueError(f"the tuning record is of a {record.card}, and this is a {card}")
    if record.source_hash != source_hash():
        raise ValueError(
            f"the tuning record is of kernels {record.source_hash[:12]}…, and these are {source_hash()[:12]}…"
        )


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _frozen(value) for key, value in values.items()}


def _frozen(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
