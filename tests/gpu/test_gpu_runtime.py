"""Loading and launching on a real device: graphs, streams, torch.compile, and files that are not what they were."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels import dispatch, qwen38
from sm70_kernels.activation import table as gates
from sm70_kernels.build import store
from sm70_kernels.cases import Case
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.errors import KernelError
from sm70_kernels.launch import launcher
from sm70_kernels.norm.table import MANY_ROWS
from sm70_kernels.proof.prove import same_bits
from sm70_kernels.proof.subject import as_tuple, copied, subjects
from sm70_kernels.torch_library import has_kernel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.conftest import Findings

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")

OPERATORS = [
    name
    for name in subjects()
    if hasattr(torch.ops.sm70, name) and getattr(torch.ops.sm70, name).default._schema.returns
]
"""Those that return something; the others change their arguments, and attention's prefill waits for the device."""

IN_PLACE = [
    name
    for name in subjects()
    if (has_kernel(name) or name in dispatch.AWAITING)
    and not getattr(torch.ops.sm70, name).default._schema.returns
    and not name.endswith("_prefill")
]
"""Those that only change their arguments, and have a kernel."""


def arguments_of(operator: str, case: int = 0) -> tuple[Any, ...]:
    return subjects()[operator].inputs(cases_of(operator, "selftest")[case], GPU)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_replayed_graph_gives_the_eager_bits(
    operator: str, findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = arguments_of(operator)
    function = getattr(torch.ops.sm70, operator)
    findings.launched.update(spec.name for spec, _ in launcher._FUNCTIONS)
    # Forget what is loaded, so that the kernel is loaded while the capture is under way.
    monkeypatch.setattr(launcher, "_FUNCTIONS", {})
    findings.graphs[operator] = False
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = as_tuple(function(*arguments))
    # New values in the captured tensors: a replay reads them from the same places.
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.mul_(0.5)
    for out in captured:
        out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    findings.graphs[operator] = same_bits(captured, as_tuple(function(*arguments)))
    assert findings.graphs[operator]


@pytest.mark.parametrize("operator", IN_PLACE)
def test_a_replayed_graph_changes_its_arguments_as_an_eager_call_does(operator: str, findings: Findings) -> None:
    subject, arguments = subjects()[operator], arguments_of(operator)
    first, *fresh = [[copied(each, GPU) for each in arguments] for _ in range(3)]
    # What is made once for a device, as a page's order is, is made outside.
    subject.results(first)
    findings.graphs[operator] = False
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = subject.results(fresh[0])
    # The capture ran nothing: every argument still is as it was made.
    graph.replay()
    torch.cuda.synchronize()
    findings.graphs[operator] = same_bits(captured, subject.results(fresh[1]))
    assert findings.graphs[operator]


@pytest.mark.parametrize("operator", OPERATORS)
def test_torch_compile_traces_through(operator: str) -> None:
    arguments = arguments_of(operator)
    function = getattr(torch.ops.sm70, operator)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert same_bits(as_tuple(compiled(*arguments)), as_tuple(function(*arguments)))


def test_a_launch_goes_to_the_current_stream() -> None:
    x, weight, eps = arguments_of("rms_norm")
    wanted = torch.ops.sm70.rms_norm(x, weight, eps)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # About 0.1 s of waiting on this stream alone: a launch on another one would read the old values.
        late = torch.zeros_like(x)
        torch.cuda._sleep(200_000_000)
        late.copy_(x)
        out = torch.ops.sm70.rms_norm(late, weight, eps)
    side.synchronize()
    assert torch.equal(out, wanted)


def test_a_fresh_thread_can_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, eps = arguments_of("rms_norm")
    wanted = torch.ops.sm70.rms_norm(x, weight, eps)
    with ThreadPoolExecutor(4) as pool:
        every = list(pool.map(lambda _: torch.ops.sm70.rms_norm(x, weight, eps), range(32)))
    assert all(torch.equal(out, wanted) for out in every)
    # And a thread may be the first to load.
    monkeypatch.setattr(launcher, "_FUNCTIONS", {})
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(torch.ops.sm70.rms_norm, x, weight, eps).result(), wanted)


def test_rows_do_not_depend_on_what_runs_beside_them() -> None:
    x, residual, weight, eps = arguments_of("add_rms_norm", 2)
    together, _ = torch.ops.sm70.add_rms_norm(x, residual, weight, eps)
    for row in range(x.shape[0]):
        alone, _ = torch.ops.sm70.add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, eps)
        assert torch.equal(alone[0], together[row])


def test_rows_taken_several_at_once_have_the_bits_of_rows_alone() -> None:
    many = 2 * (MANY_ROWS // 2) + 1
    x, weight, eps = subjects()["rms_norm"].inputs(
        Case("rms_norm", {"tokens": many, "hidden": qwen38.HIDDEN}), torch.device("cuda")
    )
    together = torch.ops.sm70.rms_norm(x, weight, eps)
    halves = [torch.ops.sm70.rms_norm(part, weight, eps) for part in x.tensor_split(2)]
    assert torch.equal(together, torch.cat(halves))


def test_a_position_outside_the_table_reads_its_nearest_row() -> None:
    q, k, positions, *rest = arguments_of("qk_norm_mrope")
    last = rest[2].shape[0] - 1
    far, near = torch.full_like(positions, 2**40), torch.full_like(positions, last)
    below, first = torch.full_like(positions, -1), torch.zeros_like(positions)
    for beyond, edge in ((far, near), (below, first)):
        got = torch.ops.sm70.qk_norm_mrope(q, k, beyond, *rest)
        assert same_bits(got, torch.ops.sm70.qk_norm_mrope(q, k, edge, *rest))


def test_a_damaged_file_is_refused_before_it_reaches_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gates.gate(True, silu=True)
    built = store.prebuilt(store.prebuilt_folder())
    if built is None or spec.name not in built.kernels:
        pytest.skip("no prebuilt kernels here")
    shutil.copytree(store.prebuilt_folder(), tmp_path / "built")
    for path in (tmp_path / "built").glob(f"{spec.name}.*"):
        path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setenv("SM70_KERNELS_DIR", str(tmp_path / "built"))
    monkeypatch.setattr(launcher, "_FUNCTIONS", {})
    with pytest.raises(KernelError, match="as its manifest says") as caught:
        torch.ops.sm70.silu_and_mul(*arguments_of("silu_and_mul"))
    assert caught.value.reason == "operator_missing:gate"


def test_the_manifest_is_that_of_this_tree() -> None:
    path = store.prebuilt_folder() / "manifest.json"
    if not path.exists():
        pytest.skip("no prebuilt kernels here")
    from sm70_kernels.registry import source_hash

    assert json.loads(path.read_text())["source_hash"] == source_hash(), "stale: run `make kernels`"
