"""Published figures as data: config/references/*.yaml. A file is a source, and holds references with their contracts.

Times are in milliseconds, rates in units per second. What the source does not tell stays open (None), and a comparison
says so.
"""

from __future__ import annotations

import datetime
import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from appliance import data_file
from appliance.bench.result import Contract, Metric, Rate, Totals
from appliance.errors import ConfigurationError, nearest
from appliance.models.source import Strict
from appliance.paths import REFERENCES
from appliance.profiles.schema import Figure

if TYPE_CHECKING:
    from pathlib import Path

Statistic = Literal["mean", "p50", "p90", "p99"]
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p90", "p99")

ROUNDING = 1e-3
"""How far a printed rate may lie from its totals: rates are printed with four digits or more."""


class Spread(Strict):
    """What is told of a distribution."""

    mean: float | None = Field(default=None, gt=0)
    p50: float | None = Field(default=None, gt=0)
    p90: float | None = Field(default=None, gt=0)
    p99: float | None = Field(default=None, gt=0)
    count: int | None = Field(default=None, gt=0)
    repeats: tuple[float, ...] = ()
    """The means of its traces, where they are told one by one."""
    derived: tuple[Statistic, ...] = ()
    """Those that are not printed and were computed from what is; the reference's notes say how."""

    @model_validator(mode="after")
    def _told(self) -> Self:
        if not self.values:
            raise ValueError("tells no statistic; wanted at least one of mean, p50, p90, p99")
        if missing := [name for name in self.derived if name not in self.values]:
            raise ValueError(f"derived names {', '.join(missing)}, which is not there")
        return self

    @property
    def values(self) -> dict[Statistic, float]:
        """The statistics that are told."""
        return {name: value for name in STATISTICS if (value := getattr(self, name)) is not None}


class Mode(Strict):
    """A part of a distribution, as results name it: `under 100 ms`, `over 4 s`."""

    metric: Metric
    mode: str
    share: float | None = Field(default=None, ge=0, le=1)
    times: Spread | None = None


class Reference(Strict):
    """Figures that hold together under one contract."""

    title: str
    provenance: Literal["published", "measured"]
    """published: by others; measured: by us, on the hardware of the contract."""
    source: str
    date: datetime.date | None = None
    screen: str | None = None
    """Why it is only a screen and no acceptance run."""
    contract: Contract
    times: dict[Metric, Spread] = Field(default_factory=dict)
    rates: dict[Rate, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """As printed; where totals are told, a comparison takes the exact rates out of them."""
    totals: Totals | None = None
    modes: tuple[Mode, ...] = ()
    figures: dict[str, Figure] = Field(default_factory=dict)
    """What else was told under this contract; nothing is compared with it."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not (self.times or self.rates or self.totals):
            raise ValueError("tells no time, no rate and no totals")
        exact = rates_of(self.totals)
        for name, printed in self.rates.items():
            if name in exact and not math.isclose(printed, exact[name], rel_tol=ROUNDING):
                raise ValueError(f"rates.{name} is {printed:g}, the totals give {exact[name]:.6g}")
        return self


class Source(Strict):
    """One file."""

    references: dict[str, Reference] = Field(min_length=1)

    @model_validator(mode="after")
    def _named(self) -> Self:
        for name in self.references:
            if not name.replace("_", "").isalnum() or name != name.lower() or not name.isascii():
                raise ValueError(f'references: "{name}" is no name; wanted lower-case letters, digits and _')
        return self


def rates_of(totals: Totals | None) -> dict[Rate, float]:
    """Return the rates that totals give, in units per second."""
    if totals is None:
        return {}
    whole: dict[Rate, int] = {
        "output_tokens_per_s": totals.output_tokens,
        "input_tokens_per_s": totals.input_tokens,
        "total_tokens_per_s": totals.input_tokens + totals.output_tokens,
        "requests_per_s": totals.completed,
    }
    return {name: number / totals.duration_s for name, number in whole.items()}


@cache
def load_all() -> dict[str, Reference]:
    """Return every shipped reference by its name, in the order of files and within them.

    Raises ConfigurationError for a bad file, or for a name that two of them have.
    """
    found: dict[str, Reference] = {}
    for path in sorted(REFERENCES.glob("*.yaml")):
        source = read(path)
        if twice := found.keys() & source.keys():
            raise ConfigurationError(f"{path}: the reference {min(twice)} is in another file too; rename one")
        found.update(source)
    return found


def load(name: str) -> Reference:
    """Return the shipped reference called `name`. Raises ConfigurationError with the nearest name."""
    known = load_all()
    if name not in known:
        raise ConfigurationError(
            f'no reference "{name}"{nearest(name, known) or ";"} `appliance bench compare --list` tells them; a result '
            "of yours is given by its path, which ends in .json"
        )
    return known[name]


def read(path: Path) -> dict[str, Reference]:
    """Return the references in a file by their names. Raises ConfigurationError for whatever is wrong with it."""
    return data_file.read(path, Source, "references").references
