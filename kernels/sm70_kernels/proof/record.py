"""The record of a run of the GPU suite, `verification/gpu.json`: what ran where, and how it went."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm70_kernels.registry import CSRC, proof_key, registered, source_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sm70_kernels.proof.prove import Outcome

COMMITTED = CSRC.parent.parent / "verification" / "gpu.json"


@dataclass(frozen=True, slots=True)
class Host:
    """What the suite ran on; `date` is that of the run, ISO 8601."""

    gpu: str
    capability: str
    driver: str
    torch: str
    date: str


def compose(host: Host, outcomes: Iterable[Outcome], launched: Iterable[str], graphs: Mapping[str, bool]) -> str:
    """Return the record as JSON text.

    `launched` names the specialisations that ran, and `graphs` says of each operator whether a replayed graph gave the
    eager result bit for bit. Each specialisation that ran stands with the hash of its own sources and constants, so a
    kernel that is added or changed later takes its own proof away and no other's. A registered specialisation that did
    not run is listed as unproven: it is built, and must not be bound.
    """
    ran = set(launched)
    cases = [
        {
            "kernel": outcome.operator,
            "shape": outcome.case,
            "error": outcome.error if outcome.error < float("inf") else "infinite",
            "gate": outcome.gate,
            "repeat": outcome.repeats,
            "guards": outcome.guards,
            "passed": outcome.passed,
        }
        for outcome in outcomes
    ]
    record = {
        "gpu": host.gpu,
        "capability": host.capability,
        "driver": host.driver,
        "torch": host.torch,
        "date": host.date,
        "source_hash": source_hash(),
        "cases": cases,
        "graphs": dict(sorted(graphs.items())),
        "sanitizer": None,
        "proven": {spec.name: proof_key(spec) for spec in registered() if spec.name in ran},
        "unproven": sorted(spec.name for spec in registered() if spec.name not in ran),
    }
    return json.dumps(record, indent=1) + "\n"


def add_sanitizer(path: Path, asked: str, verdicts: Mapping[str, str]) -> None:
    """Write into the record at `path` what the sanitizer was asked, and each tool's verdict on it.

    `asked` is its command line without the tool; `verdicts` are such as `{"memcheck": "clean"}`.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    record["sanitizer"] = {"asked": asked, **dict(sorted(verdicts.items()))}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def complaints(record: Mapping[str, Any]) -> list[str]:
    """Return what keeps a record from vouching for the kernels of this tree; nothing when it does.

    Kernels that await a GPU need no proof; one that has it must await no longer.
    """
    found = [f"{case['shape']} failed" for case in record["cases"] if not case["passed"]]
    found += [f"a replayed graph of {operator} differs" for operator, same in record["graphs"].items() if not same]
    found += [
        f"{tool} says {verdict}"
        for tool, verdict in (record["sanitizer"] or {}).items()
        if verdict.startswith("failed")
    ]
    run = "run `make gpu-test` on a machine with a GPU"
    for spec in registered():
        key = record["proven"].get(spec.name)
        proven = key == proof_key(spec)
        if spec.kernel.awaits_gpu:
            found += (
                [f"{spec.name} is proven, and {spec.kernel.name} still awaits a GPU in its table"] if proven else []
            )
        elif key is not None and not proven:
            found.append(
                f"{spec.name} ran with the sources {key[:12]}…, and this tree's are {proof_key(spec)[:12]}…: {run}"
            )
        elif key is None and spec.name not in record["unproven"]:
            found.append(f"{spec.name} is not in it: {run}")
    return found
