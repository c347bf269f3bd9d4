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


def _code(spec: Specialisation) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the places of the state's loads, of all loads, of the state's stores and of the block's barrier."""
    code = code_of(spec).program.instructions
    assert not any(each.base in ("LDL", "STL") for each in code), "registers are spilled"
    wide = [at for at, each in enumerate(code) if "128" in each.modifiers]
    state = [at for at in wide if code[at].base == "LDG" and "CONSTANT" not in code[at].modifiers]
    loads = [at for at, each in enumerate(code) if each.base == "LDG"]
    barrier = [at for at, each in enumerate(code) if each.base == "BAR"]
    return state, loads, [at for at in wide if code[at].base == "STG"], barrier


@pytest.mark.needs("engine")
@pytest.mark.parametrize("spec", [each for each in table.SPECIALISATIONS if each.kernel is table.DECODE], ids=str)
def test_a_decode_step_asks_for_its_state_first_and_moves_it_once(spec: Specialisation) -> None:
    state, loads, stored, (barrier,) = _code(spec)
    assert len(state) == len(stored) == 4 * spec.constants["COLUMNS"] // (spec.threads // 8)
    assert sum(at < state[-1] for at in loads if at not in state) == 1, "only the index comes before the state"
    assert state[-1] < barrier < stored[0]


@pytest.mark.needs("engine")
@pytest.mark.parametrize("spec", [each for each in table.SPECIALISATIONS if each.kernel is table.VERIFY], ids=str)
def test_a_verification_asks_for_its_state_and_log_first_and_stores_the_state_once(spec: Specialisation) -> None:
    state, loads, stored, (barrier,) = _code(spec)
    passes, keys = spec.constants["COLUMNS"] // (spec.threads // 8), spec.constants["ROWS"] * 32 // spec.threads
    assert len(state) == 4 * passes + keys
    assert len(stored) == 4 * passes + 1, "one of the log's keys, in a loop"
    # Sequence, its two bounds, and what was accepted and replayed.
    assert sum(at < state[-1] for at in loads if at not in state) == 5
    assert state[-1] < barrier < stored[0]
