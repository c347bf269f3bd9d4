"""The dense layers on a real device: a row's bits are its own, nothing leaks in, graphs and streams, large batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.dense import operator as dense
from sm70_kernels.dense import tune as tuning
from sm70_kernels.dense.cases import FORMS, dense_layers
from sm70_kernels.dense.table import EXPAND_FROM, INVARIANT_ROWS, candidates, layer_of
from sm70_kernels.launch import workspace
from sm70_kernels.proof.prove import relative_error
from sm70_kernels.proof.subject import subjects
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning.record import Record, dump, parse

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
LAYERS = dense_layers(4)
SHORT = FORMS


def layer(rows: int, n: int, k: int, gated: bool) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    """Return the operator of a layer, and its arguments."""
    name = "dense_w8a16_silu_mul" if gated else "dense_w8a16"
    arguments = subjects()[name].inputs(Case(name, {"rows": rows, "n": n, "k": k}), GPU)
    return getattr(torch.ops.sm70, name), arguments


@pytest.mark.parametrize("name", LAYERS)
def test_a_row_has_the_same_bits_in_every_tile_of_rows(name: str) -> None:
    run, (x, *rest) = layer(INVARIANT_ROWS, *LAYERS[name])
    together = run(x, *rest)
    for rows in (1, 2, 8, 9, 16, 24, 25, 32, 33, 48, 63):
        # Any rows of the batch, in another place of the tile.
        chosen = torch.arange(INVARIANT_ROWS - 1, INVARIANT_ROWS - 1 - rows, -1, device=GPU)
        assert torch.equal(run(x[chosen], *rest), together[chosen]), rows


@pytest.mark.parametrize("kind", SHORT)
def test_all_candidates_give_the_same_bits(kind: str) -> None:
    n, k, gated = SHORT[kind]
    _, (x, weight, scale, counters, *_) = layer(INVARIANT_ROWS, n, k, gated)
    one = layer_of(n, k, gated)
    wanted = dense.native(x, weight, scale, counters, n, one, candidates(one, INVARIANT_ROWS)[0])
    for rows in (8, 16, 24, 32, 48, 64):
        for tactic in candidates(one, rows):
            assert torch.equal(dense.native(x[:rows], weight, scale, counters, n, one, tactic), wanted[:rows]), tactic


@pytest.mark.parametrize("rows", [1, 5, 23, 40, 63, 100, 1030, EXPAND_FROM])
@pytest.mark.parametrize("kind", SHORT)
def test_nothing_but_its_rows_is_read(kind: str, rows: int) -> None:
    run, (x, *rest) = layer(rows, *SHORT[kind])
    wanted = run(x, *rest)
    around = torch.full((rows + 16, x.shape[1] + 64), float("nan"), dtype=x.dtype, device=GPU)
    inside = around[8 : 8 + rows, 16 : 16 + x.shape[1]]
    inside.copy_(x)
    found = run(inside, *rest)
    # The library may add in another order for another stride.
    assert torch.equal(found, wanted) if rows < EXPAND_FROM else relative_error(found, wanted) < 5e-4


@pytest.mark.parametrize("rows", [4, 64, 100])
@pytest.mark.parametrize("kind", SHORT)
def test_a_replayed_graph_gives_the_eager_bits_each_time(kind: str, rows: int) -> None:
    run, (x, *rest) = layer(rows, *SHORT[kind])
    wanted = run(x, *rest)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Several in a row: one launch must leave the counters as the next wants them.
        results = [run(x, *rest) for _ in range(4)]
    for _ in range(5):
        for out in results:
            out.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(out, wanted) for out in results)
    assert not rest[2].any()


def test_two_layers_may_run_at_once_on_two_streams() -> None:
    # 100 rows split K over thread blocks: each layer has counters of its own, and each call its own scratch memory.
    calls = [layer(100, 2600, 640, gated) for gated in (False, True)]
    wanted = [run(*arguments) for run, arguments in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    found: list[list[torch.Tensor]] = [[], []]
    for _ in range(50):
        for stream, (run, arguments), results in zip(streams, calls, found, strict=True):
            with torch.cuda.stream(stream):
                results.append(run(*arguments))
    torch.cuda.synchronize()
    for results, right in zip(found, wanted, strict=True):
        assert all(torch.equal(out, right) for out in results)


@pytest.mark.parametrize("kind", SHORT)
def test_weights_expanded_in_several_goes_give_the_same_result(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, arguments = layer(EXPAND_FROM, *SHORT[kind])
    whole = run(*arguments)
    small = torch.full((640 * 32 * 2 * 7 * 2,), 0xFF, dtype=torch.uint8, device=GPU)
    monkeypatch.setattr(workspace, "_MADE", {arguments[0].device: small})
    # The library may add in another order for another number of columns.
    assert relative_error(run(*arguments), whole) < 5e-4


def test_both_ways_agree_where_they_meet() -> None:
    for n, k, gated in SHORT.values():
        _, (x, weight, scale, counters, _, _, unit) = layer(EXPAND_FROM, n, k, gated)
        one = layer_of(n, k, gated)
        native = dense.native(x, weight, scale, counters, n, one, candidates(one, EXPAND_FROM)[0])
        assert relative_error(dense.expanded(x, weight, scale, n, one, unit), native) < 1e-3


def test_tuning_gives_a_record_that_may_be_adopted() -> None:
    told: list[str] = []
    found = tuning.tune_layers([tuning.Shape(*SHORT["plain"])], GPU, told.append)
    assert len(told) == len(tuning.BUCKETS) + 1
    assert all(time > 0 for timing in found["timings"] for time in timing.microseconds)
    card = torch.cuda.get_device_name()
    adopted = tuning.choices(parse(dump(Record(card, source_hash(), found))), card)
    assert len(adopted.tactics) == len(tuning.BUCKETS)
