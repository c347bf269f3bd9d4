"""What every record has in common: it is read from JSON, written as JSON, and has a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from appliance.rundir import files

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self


class Record(ABC):
    """One JSON object of the run directory. Subclasses are frozen dataclasses."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def from_json(cls, value: object) -> Self:
        """Return the record in parsed JSON. Never raises: a missing or wrong-typed field has its default.

        Fields that the dataclass does not have are ignored.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `from_json` reads."""


class FileRecord(Record):
    """A record that is the whole content of the file `FILE`."""

    __slots__ = ()

    FILE: ClassVar[str]

    @classmethod
    def read(cls, run_dir: Path) -> Self | None:
        """Return the record in `run_dir`, or None where its file is missing or no JSON object."""
        value = files.read(run_dir, cls.FILE)
        return None if value is None else cls.from_json(value)

    def write(self, run_dir: Path) -> None:
        """Replace the file in `run_dir`. Raises OSError as `files.write` does."""
        files.write(run_dir, self.FILE, self.to_json())
