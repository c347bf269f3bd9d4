"""A line of steps.jsonl: one executed engine step, or how many could not be written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import Record


@dataclass(frozen=True, slots=True)
class StepLine(Record):
    """One line. A field that is None is not in the file; a line with `lost` has only `t`, `lost` and `reason`."""

    t: float | None = None
    """When the step's output arrived, on rundir.clock()."""
    step_count: int | None = None
    """Steps executed so far, this one included; `step` in the file."""
    running: int | None = None
    waiting: int | None = None
    requests: int | None = None
    prefill_tokens: int | None = None
    decode_tokens: int | None = None
    generated_tokens: int | None = None
    """Tokens that were sampled."""
    graph: str | None = None
    """FULL, PIECEWISE or NONE; vLLM tells it only under --cudagraph-metrics."""
    lost: int | None = None
    """Lines before this one that could not be written."""
    reason: str | None = None

    @classmethod
    def from_json(cls, value: object) -> StepLine:
        """See Record."""
        given = JsonFields(value)
        return cls(
            t=given.number("t"),
            step_count=given.integer("step"),
            running=given.integer("running"),
            waiting=given.integer("waiting"),
            requests=given.integer("requests"),
            prefill_tokens=given.integer("prefill_tokens"),
            decode_tokens=given.integer("decode_tokens"),
            generated_tokens=given.integer("generated_tokens"),
            graph=given.text("graph"),
            lost=given.integer("lost"),
            reason=given.text("reason"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        record = asdict(self)
        record["step"] = record.pop("step_count")
        return {name: value for name, value in record.items() if value is not None}
