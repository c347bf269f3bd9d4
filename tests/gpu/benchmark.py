"""Time the norms and gates beside torch's and upstream's own kernels, in one run on one card.

    python tests/gpu/benchmark.py FILE.json

Each figure is a call inside a graph, over arguments that together exceed L2. `share` is the time that an ideal kernel's
bytes take at this card's copy bandwidth, over the time taken: 1 is a kernel as fast as a copy. Where few bytes move,
that share only says how small a launch is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels import shapes
from sm70_kernels.heuristics import elementwise
from sm70_kernels.launch import launch
from sm70_kernels.proof.subject import copied, subjects
from sm70_kernels.reference import elementwise as reference
from sm70_kernels.timing import copy_bandwidth, graph_microseconds, host_microseconds, rotations

if TYPE_CHECKING:
    from collections.abc import Callable

    Arguments = tuple[Any, ...]
    Call = Callable[[], object]

GPU = torch.device("cuda")
OPERATORS = ("rms_norm", "add_rms_norm", "gated_rms_norm", "qk_norm_mrope", "silu_and_mul", "sigmoid_gate")
# Upstream has torch.compile make its Gemma-style norms, for whatever number of tokens comes.
COMPILED = {name: torch.compile(getattr(reference, name), dynamic=True) for name in OPERATORS}


def ours(operator: str, arguments: Arguments) -> Call:
    """Return our operator's call."""
    function = getattr(torch.ops.sm70, operator)
    return lambda: function(*arguments)


def compiled(operator: str, arguments: Arguments) -> Call:
    """Return the reference's call, as torch.compile makes it."""
    return lambda: COMPILED[operator](*arguments)


def eager(operator: str, arguments: Arguments) -> Call | None:
    """Return the call of torch's own fused kernel; its norm multiplies by w, as much work as by 1 + w."""
    if operator != "rms_norm":
        return None
    x, weight, eps = arguments
    return lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def upstream(operator: str, arguments: Arguments) -> Call | None:
    """Return the call of vLLM's own kernel. ImportError where there is no vLLM."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fla.ops.layernorm_guard import rmsnorm_fn

    if operator == "rms_norm":
        x, weight, eps = arguments
        out = torch.empty_like(x)
        return lambda: _custom_ops.rms_norm(out, x, weight, eps)
    if operator == "add_rms_norm":
        # In place, and with an FP16 residual: 8 bytes an element, where an FP32 residual makes it 12.
        x, residual, weight, eps = arguments
        carried = residual.half()
        return lambda: _custom_ops.fused_add_rms_norm(x, carried, weight, eps)
    if operator == "gated_rms_norm":
        x, z, weight, eps = arguments
        rows = x.reshape(-1, x.shape[-1]), z.reshape(-1, z.shape[-1])
        return lambda: rmsnorm_fn(rows[0], weight, None, z=rows[1], eps=eps, norm_before_gate=True)
    if operator == "silu_and_mul":
        (x,) = arguments
        halved = x.new_empty((x.shape[0], x.shape[1] // 2))
        return lambda: torch.ops._C.silu_and_mul(halved, x)
    return None


RIVALS = {"ours": ours, "torch.compile": compiled, "torch": eager, "vllm": upstream}


def measure(operator: str, case: shapes.Case, bandwidth: float) -> dict[str, Any]:
    """Return the µs of each rival for one case, and the share of the copy bandwidth."""
    subject = subjects()[operator]
    moved = subject.moved_bytes(case)
    first = subject.inputs(case, GPU)
    sets = [tuple(copied(each, GPU) for each in first) for _ in range(rotations(moved, GPU))]
    row: dict[str, Any] = {"case": case.name, "bytes": moved, "us": {}, "share": {}, "absent": {}}
    for name, rival in RIVALS.items():
        try:
            calls = [call for each in sets if (call := rival(operator, each)) is not None]
            if calls:
                row["us"][name] = round(graph_microseconds(calls), 3)
                row["share"][name] = round(moved / bandwidth * 1e6 / row["us"][name], 4)
        except Exception as error:  # noqa: BLE001 - whatever a rival does, ours is still measured
            row["absent"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return row


def overheads() -> dict[str, float]:
    """Return the host's µs for a bare launch, and for an operator called through torch."""
    x, weight, eps = subjects()["rms_norm"].inputs(shapes.cases("rms_norm", "selftest")[0], GPU)
    out = torch.empty_like(x)
    spec = elementwise.rms_norm(x.shape[-1], True, 0)
    assert spec is not None
    arguments = (out, 0, x, 0, weight, x.shape[-1], x.stride(0), 0, eps)
    return {
        "launch": round(host_microseconds(lambda: launch(spec, x.shape[0], spec.threads, arguments)), 3),
        "operator": round(host_microseconds(lambda: torch.ops.sm70.rms_norm(x, weight, eps)), 3),
        "torch_add": round(host_microseconds(lambda: torch.add(x, x, out=out)), 3),
    }


def main() -> int:
    """Measure, print one line a case, and write the record."""
    bandwidth = copy_bandwidth(GPU)
    record: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_s": round(bandwidth),
        "host_us": overheads(),
        "cases": [],
    }
    print(f"{record['gpu']}: copy {bandwidth / 1e9:.0f} GB/s; host µs {record['host_us']}")
    for operator in OPERATORS:
        for case in shapes.cases(operator, "benchmark"):
            row = measure(operator, case, bandwidth)
            record["cases"].append(row)
            told = "  ".join(f"{name} {us:.2f} µs ({row['share'][name]:.0%})" for name, us in row["us"].items())
            print(f"{row['case']}: {told}  {row['absent'] or ''}", flush=True)
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
