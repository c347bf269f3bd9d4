"""The gated delta net's device code on the CPU, thread by thread: right, equal to the bit, within its memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.gdn import checks, table
from sm70_kernels.gdn import operator as gdn
from sm70_kernels.gdn.subject import run as run_on
from sm70_kernels.proof.prove import prove, same_bits
from sm70_kernels.proof.subject import subjects
from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, integers, relative
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
SMALL = Sizes(key_heads=1, value_heads=3, key_head=128, value_head=128, slots=5)


def built(columns: int, rows: int = 0) -> Specialisation:
    sizes = (columns, rows)
    steps = [spec for spec in table.SPECIALISATIONS if "COLUMNS" in spec.constants]
    every = {(spec.constants["COLUMNS"], spec.constants.get("ROWS", 0)): spec for spec in steps}
    return every[sizes]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(autouse=True)
def on_the_cpu(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gdn, "launch", emulator.launch)
    monkeypatch.setattr(gdn, "_TICKETS", {})


def decode(layer: GdnLayer, inputs: tuple[torch.Tensor, ...], slots: torch.Tensor, out: torch.Tensor) -> None:
    assert checks.misfit(checks.Layer(*layer._arguments(inputs))) == ""
    on_gpu(layer, inputs, slots, out)


def on_gpu(layer: GdnLayer, inputs: tuple[torch.Tensor, ...], slots: torch.Tensor, out: torch.Tensor) -> None:
    arguments: tuple[Any, ...] = (*layer._arguments(inputs), slots, out, layer.sizes.key_heads)
    gdn._decode_on_gpu(*arguments)


@pytest.mark.parametrize(
    ("columns", "sizes"),
    [
        (16, {"sequences": 1, "key_heads": 4, "value_heads": 12}),
        (16, {"sequences": 3, "key_heads": 1, "value_heads": 3, "padding": 1}),
        (32, {"sequences": 2, "key_heads": 2, "value_heads": 2, "decay": -12}),
        (64, {"sequences": 2, "key_heads": 1, "value_heads": 2, "decay": 6}),
    ],
    ids=str,
)
def test_a_step_computes_its_reference(
    columns: int, sizes: dict[str, int], emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "decode", lambda _heads: built(columns))
    case = Case("gdn_decode", {"key_head": 128, "value_head": 128, "width": 4} | sizes)
    subject = subjects()["gdn_decode"]
    monkeypatch.setattr(gdn, "_gdn_decode", None)

    def run(*arguments: Any) -> Any:
        # Another order of threads and blocks each time: where a barrier is missing, results differ.
        emulator.seed += 1
        return run_on(gdn._decode_on_gpu, *arguments)

    outcome = prove(dataclasses.replace(subject, run=run), case, CPU, 2)
    assert outcome.passed, outcome.sentence()
    assert not gdn.reserve_tickets(CPU).any(), "a ticket was left behind"


def test_steps_of_any_width_of_block_follow_the_definition_to_the_same_bits(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several steps, caches as vLLM lays them, slots in use next to slots that hold what is not a number."""
    seen = []
    for columns in (16, 64):
        monkeypatch.setattr(table, "decode", lambda _heads, columns=columns: built(columns))
        layer = GdnLayer(SMALL)
        layer.poison(3, 0)
        memories = [layer.memory(slot) for slot in (3, 0)]
        for _ in range(3):
            emulator.seed += 1
            inputs, out = layer.inputs(2), layer.out(2)
            decode(layer, inputs, integers(3, 0), out)
            for row, slot in enumerate((3, 0)):
                wanted, memories[row] = exact(layer, tuple(x[row : row + 1] for x in inputs), memories[row])
                assert relative(out[row], wanted[0]) < 1e-3
                assert relative(layer.ssm_state[slot], memories[row].state) < 1e-6
                assert torch.equal(layer.memory(slot).history, memories[row].history)
        assert bool(layer.ssm_state[[1, 2, 4]].isnan().all())
        assert bool(layer.conv_state[[1, 2, 4]].isnan().all())
        seen.append((out, *layer.bits()))
    assert same_bits(*seen)


@pytest.mark.parametrize("slots", [(-1, 2, -1), (2, -1, -1), (-1, 5, -1)], ids=str)
def test_padding_and_what_is_no_slot_touch_nothing(slots: tuple[int, ...]) -> None:
    layer = GdnLayer(SMALL)
    inputs, out, before = layer.inputs(3), layer.out(3), layer.bits()
    decode(layer, inputs, integers(*slots), out)
    for row, slot in enumerate(slots):
        if slot < 0:
            assert bool((out[row] == 0).all())
    if 5 in slots:
        assert bool(out[slots.index(5)].isnan().all()), "there are five slots"
        assert same_bits(layer.bits(), before)
        return
    alone, alone_out = GdnLayer(SMALL), layer.out(1)
    row = slots.index(2)
    decode(alone, tuple(x[row : row + 1] for x in inputs), integers(2), alone_out)
    assert same_bits((out[row], *layer.bits()), (alone_out[0], *alone.bits()))


def test_a_batch_of_more_sequences_than_tickets_takes_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, once = GdnLayer(SMALL), GdnLayer(SMALL)
    inputs, out, wanted = layer.inputs(3), layer.out(3), layer.out(3)
    decode(once, inputs, integers(4, 1, 0), wanted)
    monkeypatch.setattr(table, "TICKETS", 4)
    decode(layer, inputs, integers(4, 1, 0), out)
    assert same_bits((out, *layer.bits()), (wanted, *once.bits()))


MISFITS = {
    "heads of 8x16 and 4 taps": GdnLayer(Sizes()),
    "heads of 128x128 and 3 taps": GdnLayer(dataclasses.replace(SMALL, width=3)),
    "mixed_qkv is torch.bfloat16": GdnLayer(dataclasses.replace(SMALL, dtype=torch.bfloat16)),
    "state and A_log are torch.float16": GdnLayer(dataclasses.replace(SMALL, state_dtype=torch.float16)),
}


@pytest.mark.parametrize("said", MISFITS)
def test_what_no_kernel_takes_is_said_and_computed_by_plain_torch(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = MISFITS[said].copy()
    inputs, out, wanted = layer.inputs(2), layer.out(2), layer.out(2)
    assert checks.misfit(checks.Layer(*layer._arguments(inputs))).startswith(said)
    plain = layer.copy()
    plain.decode(inputs, integers(1, 0), wanted)
    monkeypatch.setattr(gdn, "launch", None)
    on_gpu(layer, inputs, integers(1, 0), out)
    assert same_bits((out, *layer.bits()), (wanted, *plain.bits()))


@pytest.mark.parametrize(
    ("columns", "sizes"),
    [
        (16, {"sequences": 1, "key_heads": 2, "value_heads": 8, "rows": 8}),
        (16, {"sequences": 3, "key_heads": 1, "value_heads": 4, "rows": 5, "padding": 1}),
        (32, {"sequences": 1, "key_heads": 2, "value_heads": 4, "rows": 8, "decay": -12}),
        (64, {"sequences": 2, "key_heads": 1, "value_heads": 4, "rows": 3, "decay": 6}),
        (32, {"sequences": 1, "key_heads": 1, "value_heads": 4, "rows": 16}),
        (16, {"sequences": 1, "key_heads": 1, "value_heads": 4, "rows": 1}),
    ],
    ids=str,
)
def test_a_verification_computes_its_reference(
    columns: int, sizes: dict[str, int], emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8 if sizes["rows"] <= 8 else 16
    spec = built(columns, most)
    monkeypatch.setattr(table, "verify", lambda _rows, _heads: spec)
    monkeypatch.setattr(gdn, "_gdn_verify_log", None)
    case = Case("gdn_verify_log", {"key_head": 128, "value_head": 128, "width": 4} | sizes)
    subject = subjects()["gdn_verify_log"]

    def run(*arguments: Any) -> Any:
        emulator.seed += 1
        return run_on(gdn._verify_log_on_gpu, *arguments)

    outcome = prove(dataclasses.replace(subject, run=run), case, CPU, 2)
    assert outcome.passed, outcome.sentence()
    assert not gdn.reserve_tickets(CPU).any(), "a ticket was left behind"
