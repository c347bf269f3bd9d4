"""Waves, ranges and records of the predicting model, and its command."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.dense import predict as dense
from sm70_kernels.predict import __main__ as command
from sm70_kernels.predict import step
from sm70_kernels.predict.constants import Constants, Corner, adopt, constants, described
from sm70_kernels.predict.launch import Buffer, Launch
from sm70_kernels.predict.prediction import predict_code
from sm70_kernels.predict.work import Planned
from tests.kernels.predict.counted_kernels import COPY, FFMA, HEAD, compiled, predicted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("engine")

OUT = Buffer(1 << 20)


@pytest.fixture(autouse=True, scope="module")
def compiled_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled on first use out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SM70_KERNELS_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


def ffma(blocks: int, corner: Corner = "expected") -> float:
    """Cycles of blocks of 1024 threads, of which an SM holds two at once."""
    code, kernel = compiled(FFMA, "Pffi", 1024, CHAINS=8)
    return predict_code(code, Launch(blocks, (OUT, 1.0, 2.0, 2)), kernel, corner).body_cycles


def test_every_constant_has_a_range_a_unit_and_a_source() -> None:
    rows = described()
    assert rows.keys() == {field.name for field in fields(Constants)}
    for name, row in rows.items():
        assert row.keys() == {"value", "slow", "fast", "unit", "source"}, name
        assert min(row["slow"], row["fast"]) <= row["value"] <= max(row["slow"], row["fast"]), name
        assert row["unit"], name
        assert row["source"], name
    assert constants().hmma_step * 4 == pytest.approx(8.38)
    # docs/volta.md, "Rates and floors": 125.3 TFLOP/s at 1.53 GHz when a step takes two cycles.
    fast = constants("fast")
    assert 2 * fast.products_a_cycle * fast.clock / 1e3 == pytest.approx(125.3, rel=1e-3)


def test_blocks_that_share_an_sm_share_its_pipes() -> None:
    one, two = ffma(80), ffma(160)
    # Eight warps a sub-core fill the FMA pipe, so that sixteen take twice as long; only the start is common.
    assert 1.8 < two / one < 2.05
    # A third block of an SM waits until one of two has ended; one SM with three is as slow as all with three.
    assert ffma(161) == pytest.approx(ffma(240), rel=0.02)
    assert ffma(161) > 1.3 * two


def test_a_tail_is_named() -> None:
    code, kernel = compiled(FFMA, "Pffi", 1024, CHAINS=8)
    found = predict_code(code, Launch(88, (OUT, 1.0, 2.0, 8)), kernel)
    assert found.waves == pytest.approx(88 / 80 / 2)
    # 88 blocks on 80 SMs: eight SMs have two, all others are idle half the time; but those eight are busy.
    assert found.bound == "fma"
    copy = predicted(COPY, "PPi", 32, Launch(88, (OUT, OUT, 1 << 16)))
    assert copy.bound == "wave tail"


def test_many_rounds_of_blocks_cost_as_much_each() -> None:
    few, many = ffma(80 * 6), ffma(80 * 24)
    assert many / few == pytest.approx(4, rel=0.05)


def test_the_slow_end_of_all_ranges_is_slower() -> None:
    fast, expected, slow = (ffma(80, corner) for corner in ("fast", "expected", "slow"))
    assert fast <= expected <= slow
    machines = [constants(corner) for corner in ("fast", "expected", "slow")]
    assert [machine.microseconds(1e6) for machine in machines] == sorted(m.microseconds(1e6) for m in machines)


LAST = (
    HEAD
    + """(float* out, int* counter, int n) {
    __shared__ int mine;
    if (threadIdx.x == 0) mine = atomicAdd(counter, 1);
    __syncthreads();
    if (mine != n - 1) return;
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += out[i * THREADS + threadIdx.x];
    out[threadIdx.x] = sum;
}
"""
)


def test_the_last_block_of_a_group_does_more() -> None:
    args = (Buffer(1 << 16), Buffer(4), 4)
    alone = predicted(LAST, "PPi", 128, Launch(80, args))
    assert alone.notes == ("4 branches or addresses hang on data and were guessed",)
    first = predicted(LAST, "PPi", 128, Launch(80, args, closing=0, group=4))
    last = predicted(LAST, "PPi", 128, Launch(80, args, closing=3, group=4))
    assert last.us > first.us + 0.1
    assert last.notes == ()


def test_arguments_must_fit_the_kernel() -> None:
    code, kernel = compiled(COPY, "PPi", 256)
    with pytest.raises(ValueError, match=r"k takes 3 parameters \(PPi\), not 2"):
        predict_code(code, Launch(1, (OUT, OUT)), kernel)
    with pytest.raises(ValueError, match="k: parameter 1 is 'P', given 7"):
        predict_code(code, Launch(1, (OUT, 7, 7)), kernel)


def test_a_buffer_that_is_not_touched_whole_is_noted() -> None:
    count = 1 << 16
    found = predicted(COPY, "PPi", 256, Launch(80, (Buffer(16 * count), Buffer(64 * count, cold=True), count)))
    (note,) = found.notes
    # 3.2 trips are wanted, block 0 makes four.
    assert note == "parameter 1 is said to be 4194304 bytes, and 1310720 are touched"


def test_the_launches_of_a_step_touch_what_they_say() -> None:
    every = [each for each in step.launches_of(8, 4) if isinstance(each, Planned)]
    assert {each.family for each in every} == {"attention", "dense", "gdn", "norm"}
    for planned in every:
        if planned.family == "attention":
            continue  # kernels/MODEL.md, "Attention": the emulator loses its addresses.
        assert not [note for note in planned.predict().notes if "is said to be" in note], planned.part


def test_a_record_says_that_it_is_predicted() -> None:
    record = predicted(COPY, "PPi", 256, Launch(80, (OUT, OUT, 80 * 256), "copy")).record()
    assert record["provenance"] == "predicted"
    assert json.loads(json.dumps(record)) == json.loads(json.dumps(record))
    assert record["shape"] == "copy"
    assert record["registers"] > 0
    assert sum(record["waits"].values()) == pytest.approx(1, abs=0.01)


def test_a_decode_step_reads_every_weight_once() -> None:
    for ranks, gigabytes in ((1, 24.33), (2, 24.33 / 2), (4, 24.33 / 4)):
        planned = [each for each in dense.projections(1, ranks) if isinstance(each, Planned)]
        assert sum(each.count for each in planned) == 256
        weights = 0
        for each in planned:
            buffer = each.launch.args[2]
            assert isinstance(buffer, Buffer)
            assert buffer.cold
            weights += each.count * buffer.bytes
        assert weights / 1e9 == pytest.approx(gigabytes, rel=0.002)


def test_the_command_prints_rows_and_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kernel", "gated", "--m", "1,8", "--decode-step", "--loops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == command.NOTICE
    assert len(lines) == 5
    assert all("predicted" in line for line in lines)
    assert "M=1    TP4 norm   predicted sum" in lines[3]


def test_the_command_shows_loops(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kernel", "gate_up", "--m", "1", "--loops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("loop 0x" in line and "tensor" in line for line in lines)
    assert all("predicted" in line for line in lines)


def test_the_command_prints_json_with_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--kernel", "gated", "--m", "1", "--json", "--range", "--decode-step"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["provenance"] == "predicted"
    (row,) = record["predictions"]
    assert row["provenance"] == "predicted"
    assert row["us_fast"] <= row["us"] <= row["us_slow"]
    assert [each["corner"] for each in record["steps"]] == ["expected", "fast", "slow"]
    assert all(each["provenance"] == "predicted" for each in record["steps"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--m", "0"], "'0': numbers of at least 1 with commas between them are wanted"),
        (["--m", "a"], "'a': numbers of at least 1"),
        (
            ["--kernel", "nonesuch", "--m", "1"],
            "--kernel nonesuch: no part, family or kernel of a step has that in its name",
        ),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_the_command_says_when_there_is_no_disassembler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sm70_kernels.predict.machine import cubin, sass

    monkeypatch.setenv("NVDISASM", "/nowhere/nvdisasm")
    cubin.code_of.cache_clear()
    sass.disassemble.cache_clear()
    assert command.main(["--kernel", "gated", "--m", "1"]) == 1
    assert "/nowhere/nvdisasm cannot be run" in capsys.readouterr().err


@pytest.fixture
def own_constants() -> Iterator[None]:
    """Give the model its own figures back."""
    yield
    adopt({})


@pytest.mark.usefixtures("own_constants")
def test_figures_of_a_card_take_the_place_of_the_models() -> None:
    before = ffma(80)
    adopt({"fma": {"value": 4, "slow": 5, "fast": 3, "source": "a card"}})
    assert (constants("fast").fma, constants().fma, constants("slow").fma) == (3, 4, 5)
    assert described()["fma"] == {
        "value": 4,
        "slow": 5,
        "fast": 3,
        "unit": "cycles a warp and sub-core",
        "source": "a card",
    }
    # The pipe that bounds this kernel takes twice as long.
    assert ffma(80) == pytest.approx(2 * before, rel=0.1)
    adopt({})
    assert ffma(80) == before


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"fmma": {"value": 1, "slow": 1, "fast": 1}}, "fmma is no constant of the model; it has alu, atomic"),
        ({"fma": {"value": 1, "slow": float("nan"), "fast": 1}}, "fma: value, slow and fast are to be numbers"),
        ({"fma": {"value": 4, "slow": 3, "fast": 1}}, "fma: the value 4 is not between slow, 3, and fast, 1"),
    ],
)
def test_figures_that_cannot_be_are_refused(figures: dict[str, dict[str, float]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        adopt(figures)
    assert constants().fma == 2


@pytest.mark.usefixtures("own_constants")
def test_the_command_takes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "card.json"
    row = {"value": 1.0, "slow": 1.2, "fast": 0.9, "source": "measured on a card"}
    record.write_text(json.dumps({"capability": "7.0", "constants": {"ramp": row}}))
    words = ["--m", "1", "--kernel", "cublas", "--json", "--constants", str(record)]
    assert command.main([*words, "--set", "stream_bandwidth=800,gap=0.5"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["ramp"] == row | {"unit": "us a kernel"}
    assert (machine["stream_bandwidth"]["value"], machine["gap"]["source"]) == (800, "given to the command")
    record.write_text(json.dumps({"capability": "9.0", "card": "NVIDIA H200", "constants": {"ramp": row}}))
    assert command.main(words) == 1
    assert "is of a NVIDIA H200 of compute capability 9.0" in capsys.readouterr().err
    record.write_text("{}")
    assert command.main(words) == 1
    assert "not a record of `appliance bench card` (KeyError: 'capability')" in capsys.readouterr().err
    assert command.main([*words[:-1], str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--set", "ramp"])
