"""Tolerant look-ups in JSON that another process wrote, perhaps of another version, perhaps damaged."""

from __future__ import annotations

from typing import Any

LARGEST = 1e15
"""No count, age or size of a record comes near. JSON can carry infinity, NaN and integers that no float holds."""


class JsonFields:
    """The fields of a JSON object. Each look-up gives None for a field that is missing or of another type.

    Anything but an object counts as an empty one.
    """

    def __init__(self, value: object) -> None:
        self._object: dict[str, Any] = value if isinstance(value, dict) else {}

    def number(self, name: str) -> float | None:
        """Return a finite number; a boolean is none."""
        value = self._object.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
            return None
        return float(value)

    def integer(self, name: str) -> int | None:
        """Return a finite number without its fraction."""
        value = self.number(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self._object.get(name)
        return encodable(value) if isinstance(value, str) else None

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        value = self._object.get(name)
        return value if isinstance(value, bool) else None

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return a list, each item as text."""
        value = self._object.get(name)
        return tuple(encodable(str(item)) for item in value) if isinstance(value, list | tuple) else None

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of integers; None where any item is something else."""
        value = self._object.get(name)
        if not isinstance(value, list | tuple):
            return None
        return tuple(value) if all(isinstance(item, int) and not isinstance(item, bool) for item in value) else None

    def any(self, name: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return a value of any type; None where it is missing."""
        return self._object.get(name)

    def object(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object as it is."""
        value = self._object.get(name)
        return value if isinstance(value, dict) else None

    def objects(self, name: str) -> tuple[dict[str, Any], ...]:
        """Return the objects in a list; other items are left out."""
        value = self._object.get(name)
        return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list | tuple) else ()

    def objects_by_name(self, name: str) -> dict[str, dict[str, Any]] | None:
        """Return an object of objects; other values in it are left out."""
        value = self.object(name)
        return None if value is None else {str(key): item for key, item in value.items() if isinstance(item, dict)}

    def integers_by_name(self, name: str) -> dict[str, int] | None:
        """Return an object of whole numbers; other values in it are left out."""
        value = self.object(name)
        return None if value is None else {str(key): item for key, item in value.items() if type(item) is int}

    def texts_by_name(self, name: str) -> dict[str, str] | None:
        """Return an object of strings; other values in it are left out."""
        value = self.object(name)
        if value is None:
            return None
        return {str(key): encodable(item) for key, item in value.items() if isinstance(item, str)}


def encodable(text: str) -> str:
    """Return `text` as UTF-8 can write it: JSON can carry half of a surrogate pair, which no output takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
