"""Whether each GPU reads the others: the driver's answer, and bytes that are really carried over.

Behind an IOMMU, or with PCIe access control on, the driver allows peer access and the bytes come wrong or never.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from itertools import permutations
from typing import TYPE_CHECKING, Any

from appliance.doctor.check import Check
from appliance.doctor.checks.gpu import NO_GPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from appliance.doctor.check import Status
    from appliance.topology.machine import Machine

LIMIT = 180.0
"""Seconds for all pairs (chosen): importing torch and a context on each of eight GPUs take about a minute when cold."""

KILL_LIMIT = 5.0
"""Seconds that a killed process gets to end."""

_HINT = "switch ACS off in the PCIe bridges and the IOMMU to passthrough (iommu=pt), or serve with fewer GPUs"


def access(machine: Machine, chosen: Sequence[int], links: str) -> Check:
    """Judge the driver's answers for every ordered pair of `chosen`; `links` is what the profile needs."""
    name, title = "peer_access", "peer access"
    if len(chosen) < 2:
        return Check(name, title, "skipped", "fewer than two GPUs are used")
    place = {gpu.index: position for position, gpu in enumerate(machine.gpus)}
    gone = [index for index in chosen if index not in place]
    if gone:
        return Check(name, title, "skipped", f"GPU {gone[0]} is not there")
    wanted = {"nvlink": "NVLink between every pair", "peer": "peer access between every pair"}.get(links, "nothing")
    pairs = {(a, b): machine.links[place[a]][place[b]] for a, b in permutations(chosen, 2)}
    refused = [f"{a}→{b} ({link.kind})" for (a, b), link in pairs.items() if link.peer_access is False]
    if refused:
        # Without a need for peer access, copies go through the host's memory: slower, and right.
        status: Status = "warn" if links == "none" else "fail"
        return Check(name, title, status, f"no peer access {', '.join(refused)}", wanted, _HINT)
    unlinked = [f"{a}→{b} ({link.kind})" for (a, b), link in pairs.items() if link.kind != "nvlink"]
    if links == "nvlink" and unlinked:
        todo = "choose GPUs of one NVLink island, or a profile that needs none; `appliance topology` shows the links"
        return Check(name, title, "fail", f"no NVLink {', '.join(unlinked)}", wanted, todo)
    unknown = [f"{a}→{b}" for (a, b), link in pairs.items() if link.peer_access is None]
    if unknown:
        todo = "look at `nvidia-smi topo -p2p r`"
        return Check(name, title, "warn", f"the driver does not tell for {', '.join(unknown)}", wanted, todo)
    return Check(name, title, "ok", f"all {len(pairs)} directions", wanted)


def data(result: Mapping[str, Any], links: str) -> Check:
    """Judge a test of real copies, as `try_copies` returns it."""
    name, title, wanted = "peer_data", "peer copies", "every pattern read back as it was written"
    if "error" in result:
        todo = "mend torch first; `python -m appliance.doctor.peer_program 0 1` shows the whole error"
        return Check(name, title, "fail", f"the copies ended early ({result['error']})", wanted, todo)
    if "hung" in result:
        return Check(name, title, "fail", f"the copies did not end within {result['hung']:.0f} s", wanted, _HINT)
    pairs: list[tuple[int, int, bool, bool]] = [tuple(pair) for pair in result["pairs"]]
    if not pairs:
        return Check(name, title, "skipped", f"torch sees {result['gpus']} GPU, and two are needed")
    wrong = [f"{a}→{b}" for a, b, _, right in pairs if not right]
    if wrong:
        return Check(name, title, "fail", f"wrong bytes came over {', '.join(wrong)}", wanted, _HINT)
    through_host = [f"{a}→{b}" for a, b, peer, _ in pairs if not peer]
    if through_host and links != "none":
        return Check(name, title, "fail", f"CUDA gives no peer access {', '.join(through_host)}", wanted, _HINT)
    return Check(name, title, "ok", f"{len(pairs)} directions carried their pattern", wanted)


def _command(chosen: Sequence[int]) -> list[str]:
    return [sys.executable, "-P", "-m", "appliance.doctor.peer_program", *map(str, chosen)]


def try_copies(chosen: Sequence[int]) -> Mapping[str, Any]:
    """Copy a pattern over every pair of `chosen` in a process of its own.

    Returns `gpus` and `pairs` of [from, to, peer, right], or `hung` (seconds waited), or `error` (its last line).
    """
    process = subprocess.Popen(_command(chosen), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        # A copy that hangs inside the driver cannot be killed, and must not be waited for.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_LIMIT)
        return {"hung": LIMIT}
    try:
        return dict(json.loads(out))
    except ValueError:
        lines = errors.strip().splitlines() or [f"status {process.returncode}"]
        return {"error": lines[-1]}


def skipped(reason: str = NO_GPU) -> list[Check]:
    """Return both checks as skipped."""
    return [
        Check("peer_access", "peer access", "skipped", reason),
        Check("peer_data", "peer copies", "skipped", reason),
    ]
