"""One thing that was looked at: what was found, what was wanted, and what to do when they differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from appliance.errors import ApplianceError

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True)
class Check:
    """`id` is stable for machines, `title` is for people; `todo` is set whenever the status is `warn` or `fail`."""

    id: str
    title: str
    status: Status
    found: str
    wanted: str = ""
    todo: str = ""

    @property
    def line(self) -> str:
        """What was found, wanted and is to be done, in one line."""
        if self.status in ("ok", "skipped"):
            return f"{self.title}: {self.found}"
        wanted = f"; wanted {self.wanted}" if self.wanted else ""
        return f"{self.title}: {self.found}{wanted}; {self.todo}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def from_error(identity: str, title: str, error: ApplianceError, otherwise: str) -> Check:
    """Return the failed check that says what `error` says; its parts stand between semicolons.

    `otherwise` is what to do where the error does not say it.
    """
    found, *rest = str(error).split("; ")
    wanted = next((part for part in rest if part.startswith("wanted ")), "")
    todo = "; ".join(part for part in rest if part != wanted) or otherwise
    return Check(identity, title, "fail", found, wanted.removeprefix("wanted "), todo)


def first_failure(checks: list[Check]) -> Check | None:
    """Return the first check that failed, or None."""
    return next((check for check in checks if check.status == "fail"), None)


def gib(size: int) -> str:
    """Write a size in GiB, or in MiB below one."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
