"""The device code of a prefill on the CPU, thread by thread: right, equal to the bit, within its memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.gdn import operator as gdn
from sm70_kernels.gdn import prefill, reference, table
from sm70_kernels.gdn.subject import run as run_on
from sm70_kernels.launch import workspace
from sm70_kernels.proof.prove import prove, relative_error
from sm70_kernels.proof.subject import subjects
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")

STATE_GATE = 2e-3
"""Where most of a state is forgotten at once; without a scale of their own for what is kept, it is off by 8e-3."""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def on_gpu(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
    """The operator by its kernels, each time with another order of threads and blocks."""
    monkeypatch.setattr(prefill, "launch", emulator.launch)
    monkeypatch.setattr(reference, "gdn_prefill", None)

    def run(*arguments: Any) -> torch.Tensor:
        emulator.seed += 1
        return run_on(gdn._prefill_on_gpu, *arguments)

    return run


def case_of(**sizes: int) -> Case:
    return Case("gdn_prefill", {"key_head": 128, "value_head": 128, "width": 4, "key_heads": 1} | sizes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"sequences": 1, "length": 1, "value_heads": 1},
        {"sequences": 3, "length": 70, "value_heads": 3, "padding": 1},
        {"sequences": 2, "length": 64, "value_heads": 1, "decay": -12},
        {"sequences": 1, "length": 130, "value_heads": 1, "decay": 6},
        {"sequences": 1, "length": 9, "key_heads": 2, "value_heads": 4},
    ],
    ids=str,
)
def test_a_prefill_computes_its_reference(sizes: dict[str, int], on_gpu: Callable[..., torch.Tensor]) -> None:
    outcome = prove(dataclasses.replace(subjects()["gdn_prefill"], run=on_gpu), case_of(**sizes), CPU, 2)
    assert outcome.passed, outcome.sentence()


LAYER = 8
"""Arguments that belong to all tokens of a layer or to its caches; `where` and key_heads follow."""


def parts_of(arguments: list[Any], bounds: list[tuple[int, int]], carried: bool) -> list[list[Any]]:
    """Cut a case of one sequence into prefills of its tokens, the first of which may have no state."""
    found = []
    for number, (first, last) in enumerate(bounds):
        part = [*(each[first:last] for each in arguments[:3]), *arguments[3:]]
        part[LAYER] = torch.tensor([0, last - first], dtype=torch.int32)
        part[LAYER + 2] = torch.tensor([carried or number > 0])
        found.append(part)
    return found


def test_two_pieces_are_one_and_neighbours_change_no_bit(on_gpu: Callable[..., torch.Tensor]) -> None:
    whole = list(subjects()["gdn_prefill"].inputs(case_of(sequences=1, length=90, value_heads=1), CPU))
    cut = [each.clone() if torch.is_tensor(each) else each for each in whole]
    # A copy of a view keeps its strides: the channels of a column lie side by side.
    once = on_gpu(*whole)
    pieces = [on_gpu(*part) for part in parts_of(cut, [(0, 64), (64, 90)], carried=True)]
    # The second piece begins at a chunk's border with the state in FP32: nothing is rounded otherwise.
    assert torch.equal(once, torch.cat(pieces))
    assert torch.equal(whole[3], cut[3])
    assert torch.equal(whole[5], cut[5])
    pieces = [on_gpu(*part) for part in parts_of(cut, [(0, 2), (2, 3), (3, 40), (40, 90)], carried=False)]
    wanted = [each.clone() if torch.is_tensor(each) else each for each in whole]
    alone = on_gpu(*parts_of(wanted, [(0, 90)], carried=False)[0])
    assert float((torch.cat(pieces).float() - alone.float()).norm() / alone.float().norm()) < 1e-3
    assert torch.equal(cut[3], wanted[3])
    assert float((cut[5] - wanted[5]).norm() / wanted[5].norm()) < 1e-3


def test_a_state_is_right_where_a_chunk_forgets_at_its_end(on_gpu: Callable[..., torch.Tensor]) -> None:
    subject = dataclasses.replace(subjects()["gdn_prefill"], run=on_gpu)
    arguments = list(subject.inputs(case_of(sequences=1, length=64, value_heads=1), CPU))
    b, a, *_, a_log, dt_bias = arguments[1:LAYER]
    for each in (a_log, dt_bias):
        each.zero_()
    # The last token leaves exp(-12) of all before it and writes next to nothing itself.
    a.fill_(-4)
    a[-1], b[-1] = 12, -10
    wanted = subject.wanted(arguments)[2]
    state, slot = subject.results(arguments)[2], int(arguments[LAYER + 1])
    assert relative_error(state[slot], wanted[slot]) < STATE_GATE


def test_a_small_workspace_changes_no_bit(on_gpu: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Six chunks, three at a time: the second sequence begins without a state in one launch and ends in the next."""
    case = case_of(sequences=4, length=70, value_heads=1, padding=1)
    arguments = [list(subjects()["gdn_prefill"].inputs(case, CPU)) for _ in range(2)]
    at_once = on_gpu(*arguments[0])
    small = torch.full((3 * sum(table.chunk_bytes(1, 1)),), 0xFF, dtype=torch.uint8)
    monkeypatch.setattr(workspace, "_MADE", {CPU: small})
    assert torch.equal(on_gpu(*arguments[1]), at_once)
    for one, other in zip(*arguments, strict=True):
        assert not torch.is_tensor(one) or torch.equal(one, other)


def test_every_chunk_that_there_may_be_is_launched() -> None:
    for lengths in ([1, 1, 1], [64], [65, 127, 1], [8192]):
        chunks = sum(-(-length // table.CHUNK) for length in lengths)
        assert chunks <= table.prefill_chunks(sum(lengths), len(lengths))
    # A chunk of the profile's budget goes at once.
    assert workspace.BYTES // sum(table.chunk_bytes(4, 12)) >= 8192 // table.CHUNK
