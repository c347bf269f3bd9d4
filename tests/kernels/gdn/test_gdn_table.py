"""Which kernel serves which batch, and that the assembler made of it what was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels import qwen38
from sm70_kernels.gdn import table
from sm70_kernels.predict.machine.cubin import code_of

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation


@pytest.mark.parametrize("ranks", qwen38.RANKS)
def test_a_short_batch_is_spread_over_all_sms_and_a_long_one_reads_less(ranks: int) -> None:
    heads = qwen38.GDN_HEADS // ranks
    columns = [table.decode(sequences * heads).constants["COLUMNS"] for sequences in (1, 32)]
    assert heads * table.HEAD // columns[0] >= 80
    assert columns[1] == 64


@pytest.mark.needs("engine")
@pytest.mark.parametrize("spec", table.SPECIALISATIONS, ids=lambda spec: spec.name)
def test_a_decode_step_asks_for_its_state_first_and_moves_it_once(spec: Specialisation) -> None:
    code = code_of(spec).program.instructions
    places = {name: [at for at, each in enumerate(code) if each.base == name] for name in ("LDG", "STG", "BAR", "LDL")}
    state = [at for at in places["LDG"] if "128" in code[at].modifiers and "CONSTANT" not in code[at].modifiers]
    stored = [at for at in places["STG"] if "128" in code[at].modifiers]
    lanes = spec.threads // 8
    assert len(state) == len(stored) == 4 * spec.constants["COLUMNS"] // lanes
    (barrier,) = places["BAR"]
    others = [at for at in places["LDG"] if at not in state]
    assert sum(at < state[-1] for at in others) == 1, "only the state's index is asked for before the state"
    assert state[-1] < barrier < stored[0]
    assert not places["LDL"], "registers are spilled"
