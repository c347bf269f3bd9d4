"""Prove every operator that has a kernel on this very card, at load, before a route is bound to it."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from appliance.acceleration import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LIMIT_S = 300.0
"""Seconds that all operators together may take; each takes well under one on a card that is well."""

logger = logging.getLogger("vllm.appliance.sm70")


@dataclass(frozen=True)
class SelfTest:
    """The outcome for one operator.

    `reason` is empty where it passed, else `selftest_failed:OP` or `operator_missing:OP`; `detail` is one line for a
    person; `error` is the greatest relative error seen over `cases`.
    """

    operator: str
    passed: bool
    reason: str = ""
    detail: str = ""
    error: float = 0.0
    cases: int = 0

    def told(self) -> dict[str, Any]:
        """The form that the report has."""
        return {name: value for name, value in asdict(self).items() if name != "operator"}


def run(
    operators: Iterable[str], progress: Callable[[str], None] = logger.info, limit: float = LIMIT_S
) -> dict[str, SelfTest]:
    """Test the named operators on the current CUDA device, one after the other, and return the outcome of each.

    Every case runs more than once and must give the same bits and the reference's values. `progress` is given a line
    before each operator, so that a start which hangs in one says in which. An operator that nobody wrote cases for is
    not proven, and counts as failed; so does one that has cases left after `limit` seconds. Raises nothing for a
    failure.
    """
    from sm70_kernels import selftest
    from sm70_kernels.proof.subject import subjects

    names, known = list(operators), subjects()
    found: dict[str, SelfTest] = {}
    began = time.monotonic()
    for number, name in enumerate(names, 1):
        progress(f"SM70 self-test {number}/{len(names)}: {name}")
        if name not in known:
            detail = f"sm70_kernels has no self-test of {name}"
            found[name] = SelfTest(name, False, report.selftest_failed(name), detail)
            continue
        told = selftest.run([name], until=began + limit)[name]
        found[name] = SelfTest(name, told.passed, told.reason, told.detail, told.error, told.cases)
    failed = [each for each in found.values() if not each.passed]
    progress(f"SM70 self-test: {len(found) - len(failed)} of {len(found)} passed in {time.monotonic() - began:.1f} s")
    for each in failed:
        logger.warning("SM70 operator %s failed its self-test and is not used: %s", each.operator, each.detail)
    return found
