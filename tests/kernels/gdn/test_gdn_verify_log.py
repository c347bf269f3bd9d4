"""`sm70.gdn_verify_log`: rows whose effect is logged, of which the next round does the accepted ones again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import pytest
import torch

from sm70_kernels.gdn import log as logs
from sm70_kernels.gdn import operator as gdn
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, integers, relative
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 4
SIZES = Sizes(rows=ROWS, slots=5, dtype=torch.float32)
BUILT = Sizes(key_heads=1, value_heads=4, key_head=128, value_head=128, rows=ROWS, slots=5)

Operator: TypeAlias = "Callable[..., None]"


class Served:
    """A layer with its log, and what it should remember of each slot that is in use, in float64."""

    def __init__(self, sizes: Sizes, seed: int, operator: Operator) -> None:
        self.layer, self.operator = GdnLayer(sizes, seed), operator
        self.layer.conv_state[..., sizes.width - 1 :] = torch.nan
        self.log, self.logged = self.layer.log(), torch.zeros(sizes.slots, dtype=torch.int32)
        self.memories = {slot: self.layer.memory(slot) for slot in range(sizes.slots)}

    def prefill(self, slot: int, length: int) -> None:
        """Give the slot to a new sequence, whatever it held."""
        inputs, out = self.layer.inputs(length), self.layer.out(length)
        self.layer.prefill(inputs, integers(0, length), integers(slot), torch.tensor([False]), out)
        logs.forget(self.logged, integers(-1, slot))
        _, self.memories[slot] = exact(self.layer, inputs, self.layer.no_memory())

    def verify(self, slots: list[int], counts: list[int], accepted: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a round; return its outputs and what they should be. `accepted` is of the last round."""
        bounds = integers(0, *torch.tensor(counts).cumsum(0).tolist())
        where, kept = integers(*slots), integers(*accepted)
        replayed = logs.begin_round(self.logged, bounds, where, kept, ROWS)
        self.inputs, out = self.layer.inputs(sum(counts)), self.layer.out(sum(counts))
        layer = (*self.layer._arguments(self.inputs), self.log)
        self.operator(*layer, bounds, where, kept, replayed, out, self.layer.sizes.key_heads)
        parts = [slice(a, b) for a, b in pairwise(bounds.tolist())]
        self.rows = {slot: tuple(x[part] for x in self.inputs) for slot, part in zip(slots, parts, strict=True)}
        wanted = [exact(self.layer, self.rows[slot], self.memories[slot])[0] for slot in slots]
        return out, torch.cat(wanted)

    def accept(self, slot: int, count: int) -> None:
        """Let `count` rows of the last round stand."""
        _, self.memories[slot] = exact(self.layer, tuple(x[:count] for x in self.rows[slot]), self.memories[slot])


def plain(*arguments: object) -> None:
    torch.ops.sm70.gdn_verify_log(*arguments)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(params=["plain torch", "device code"])
def operator(request: pytest.FixtureRequest, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Operator:
    if request.param == "plain torch":
        return plain
    if COMPILER is None:
        pytest.skip("no g++ to emulate device code with")
    monkeypatch.setattr(gdn, "_gdn_verify_log", None)
    monkeypatch.setattr(gdn, "_TICKETS", {})

    def launch(*given: object) -> None:
        emulator.seed += 1
        emulator.launch(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(gdn, "launch", launch)
    return gdn._verify_log_on_gpu


def test_any_acceptance_cancellation_and_reuse_of_a_slot_equals_the_tokens_that_were_kept(operator: Operator) -> None:
    served = Served(BUILT if operator is not plain else SIZES, 3, operator)
    draw = torch.Generator().manual_seed(1)
    tolerance = 1e-3 if operator is not plain else 1e-5

    def below(most: int) -> int:
        return int(torch.randint(most, (1,), generator=draw))

    accepted: dict[int, int] = {}
    for slot in (4, 0, 2):
        served.prefill(slot, 2 + slot)
        accepted[slot] = 1
    for number in range(4):
        if number == 2:
            # One sequence ends with rows that nobody accepts, and another one takes its slot.
            served.prefill(0, 1)
            accepted[0] = 1
        slots = [slot for slot in accepted if below(4)] or [4]
        counts = [1 + below(ROWS) for _ in slots]
        out, wanted = served.verify(slots, counts, [accepted[slot] for slot in slots])
        assert relative(out, wanted) < tolerance
        for slot, count in zip(slots, counts, strict=True):
            accepted[slot] = 1 + below(count)
            served.accept(slot, accepted[slot])
    # A last round brings each state up to what was accepted.
    served.verify([*accepted], [1] * len(accepted), [*accepted.values()])
    for slot in accepted:
        assert relative(served.layer.ssm_state[slot], served.memories[slot].state) < 1e-5
    assert bool(served.log[[1, 3]].isnan().all())


def test_a_replay_has_the_bits_of_states_that_were_stored() -> None:
    """The state after a round's accepted rows equals the one that `gdn_verify` stores behind each row."""
    layer, served = GdnLayer(replace(SIZES, slots=ROWS)), Served(replace(SIZES, slots=ROWS), 0, plain)
    served.verify([0], [ROWS], [1])
    stored = torch.arange(ROWS, dtype=torch.int32)[None]
    layer.conv_state[..., SIZES.width - 1 :] = torch.nan
    layer.verify(served.inputs, integers(0, ROWS), stored, integers(1), layer.out(ROWS))
    for kept in range(1, ROWS + 1):
        again = Served(replace(SIZES, slots=ROWS), 0, plain)
        again.verify([0], [ROWS], [1])
        again.verify([0], [1], [kept])
        assert torch.equal(again.layer.ssm_state[0], layer.ssm_state[kept - 1])


def test_padding_touches_nothing_and_gives_zero(operator: Operator) -> None:
    served = Served(BUILT if operator is not plain else SIZES, 0, operator)
    served.verify([1], [3], [1])
    before, log = served.layer.bits(), served.log.clone()
    inputs, out = served.layer.inputs(4), served.layer.out(4)
    for x in inputs:
        x.fill_(torch.nan)
    layer = (*served.layer._arguments(inputs), served.log)
    where = (integers(0, 2, 2, 3), integers(-1, 1, -1), integers(9, 2, 0), integers(9, 2, -3))
    operator(*layer, *where, out, served.layer.sizes.key_heads)
    assert bool((out[:3] == 0).all())
    assert bool((out[3] == 7).all()), "a row beyond the last sequence was written"
    assert all(torch.equal(one, other) for one, other in zip(served.layer.bits(), before, strict=True))
    assert torch.equal(served.log.nan_to_num(), log.nan_to_num())


@pytest.mark.parametrize(
    ("count", "accepted", "replayed"), [(5, 1, 0), (1, 0, 0), (1, 5, 5), (1, 2, 0), (1, 2, 1), (1, 1, -1)]
)
def test_what_cannot_be_is_not_a_number_and_changes_nothing(
    count: int, accepted: int, replayed: int, operator: Operator
) -> None:
    served = Served(BUILT if operator is not plain else SIZES, 0, operator)
    before, log = served.layer.bits(), served.log.clone()
    inputs, out = served.layer.inputs(count), served.layer.out(count)
    layer = (*served.layer._arguments(inputs), served.log)
    where = (integers(0, count), integers(2), integers(accepted), integers(replayed))
    operator(*layer, *where, out, served.layer.sizes.key_heads)
    assert bool(out.isnan().all())
    assert all(torch.equal(one, other) for one, other in zip(served.layer.bits(), before, strict=True))
    assert torch.equal(served.log.isnan(), log.isnan())


def test_the_book_of_logs_says_what_is_replayed() -> None:
    logged = integers(0, 3, 2, 0, 4)
    bounds = integers(0, 2, 3, 3, 7, 12)
    replayed = logs.begin_round(logged, bounds, integers(0, 1, 2, -1, 4), integers(1, 3, 1, 9, 4), ROWS)
    # A fresh state, an accepted log, a sequence without rows, padding, and five rows where four fit.
    assert replayed.tolist() == [0, 3, 1, logs.IMPOSSIBLE, logs.IMPOSSIBLE]
    assert logged.tolist() == [2, 1, 2, 0, 4]
    assert logs.begin_round(logged, integers(0, 1), integers(0), integers(3), ROWS).tolist() == [logs.IMPOSSIBLE]
    assert logs.begin_round(logged, integers(0, 1), integers(3), integers(2), ROWS).tolist() == [logs.IMPOSSIBLE]
    assert logged.tolist() == [2, 1, 2, 0, 4]
    logs.forget(logged, integers(-1, 4, 1))
    assert logged.tolist() == [2, 0, 2, 0, 0]
