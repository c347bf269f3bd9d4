"""What the library does in a step, by hand count: the output head, and dense layers whose weights are expanded."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.dense import predict as dense
from sm70_kernels.dense import table
from sm70_kernels.dense.predict import Call, Run
from sm70_kernels.dense.table import EXPAND_FROM
from sm70_kernels.launch import workspace
from sm70_kernels.predict import __main__ as command
from sm70_kernels.predict import library, step
from sm70_kernels.predict.constants import constants
from sm70_kernels.predict.launch import Buffer
from sm70_kernels.predict.library import Pass, Product, estimate
from sm70_kernels.predict.prediction import predict
from sm70_kernels.predict.work import Called, Path, Planned

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")
def compiled_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled on first use out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SM70_KERNELS_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


def test_the_output_head_takes_what_its_bytes_take() -> None:
    found = estimate(Product(1, 248320 // 4, 5120))
    # 62080 * 5120 * 2 bytes at 642 GB/s, and 1.5 to start.
    assert found.dram_bytes == 635_699_200
    assert found.us == pytest.approx(990.186 + 1.5, abs=0.01)
    # At 870 GB/s.
    assert found.roofline_us == pytest.approx(730.689, abs=0.01)
    assert found.roofline_share == pytest.approx(0.7368, abs=1e-4)
    assert found.bound == "dram"
    assert found.us == estimate(Product(32, 62080, 5120)).us
    assert found.provenance == "predicted"
    assert found.basis == "roofline and a published rate"


def test_many_rows_take_what_their_products_take() -> None:
    found = estimate(Product(8192, 4352, 5120))
    # 182,536,110,080 products; 80 SMs of four sub-cores do 128 each a cycle: 4,456,448 cycles, 3062.85 us at 1.455 GHz.
    assert found.us == pytest.approx(3062.85 / 0.71 + 1.5, abs=0.1)
    # Measured on four independent chains: 8.38 cycles where the peak is 8.
    assert found.roofline_us == pytest.approx(3062.85 * 8.38 / 8, abs=0.1)
    assert found.bound == "tensor"
    # Neither rows in (84 MB) nor out (71 MB) stay in L2.
    assert found.dram_bytes == 2 * (4352 * 5120 + 8192 * 5120 + 8192 * 4352)


def test_rows_that_fit_l2_cost_no_dram() -> None:
    # 614 rows of 5120 are 6,287,360 bytes, and L2 has 6,291,456.
    assert estimate(Product(614, 24, 5120)).dram_bytes == 24 * 5120 * 2
    assert estimate(Product(615, 24, 5120)).dram_bytes == (24 + 615) * 5120 * 2


def test_a_small_product_is_its_start() -> None:
    found = estimate(Product(1, 24, 5120))
    assert found.us == pytest.approx(1.5 + 245760 / 642e3, abs=1e-3)
    assert found.bound == "launch"


def test_the_rates_are_those_of_their_sources() -> None:
    fast, expected, slow = constants("fast"), constants(), constants("slow")
    peak = 80 * 4 * 128 * 2 / 1e3  # TFLOP/s at 1 GHz
    assert slow.gemm_share == pytest.approx(83 / (peak * 1.53), abs=0.005)
    assert expected.gemm_share == pytest.approx(85 / (peak * expected.clock), abs=0.005)
    assert fast.gemm_share == pytest.approx(83.5 / 93, abs=0.005)
    head = 62080 * 5120 * 2
    assert expected.stream_bandwidth == pytest.approx(head / 0.99e-3 / 1e9, abs=0.5)
    assert slow.stream_bandwidth == pytest.approx(head / 1.30e-3 / 1e9, abs=0.5)
    times = [estimate(Product(rows, 5120, 4352), corner).us for rows in (1, 8192) for corner in ("fast", "slow")]
    assert times[0] < times[1] < times[2] < times[3]


def test_the_workspace_is_the_operators() -> None:
    assert table.WORKSPACE_BYTES == workspace.BYTES


def test_gate_and_up_of_four_ranks_are_expanded_at_once() -> None:
    one, *rest = dense.expanded(4352, 5120, True, 8192)
    assert isinstance(one, Run)
    assert (one.count, one.launch.extent) == (1, (10, 272, 1))
    # As the operator does it: 4096 rows of both halves at a time, in FP32, then silu and a product rounded to FP16.
    assert rest == [
        Call("product", 2 * 2, Product(4096, 4352, 5120, out_bytes=4)),
        Call("silu", 2, Pass(4096, 4352, 8)),
        Call("mul", 2, Pass(4096, 4352, 10)),
    ]


def test_rows_beyond_a_full_turn_of_gate_and_up_are_a_turn_of_their_own() -> None:
    calls = [each for each in dense.expanded(4352, 5120, True, 4097) if isinstance(each, Call)]
    assert [(each.what, each.count, each.product.rows) for each in calls if each.what == "product"] == [
        ("product", 2, 4096),
        ("product", 2, 1),
    ]


def test_a_pass_takes_its_bytes_time() -> None:
    found = estimate(Pass(4096, 4352, 8))
    # 142,606,336 bytes at 870 GB/s, and 1.5 to start.
    assert found.us == pytest.approx(163.915 + 1.5, abs=1e-2)
    assert (found.bound, found.dram_bytes, found.kernel) == ("dram", 142_606_336, "torch_elementwise")
    # What L2 holds is read from there.
    small = estimate(Pass(1, 4352, 8))
    assert (small.bound, small.dram_bytes) == ("launch", 0)
    assert small.us == pytest.approx(1.5 + 34816 / 2500e3, abs=1e-3)


def test_a_larger_layer_is_expanded_in_turns() -> None:
    # The workspace holds 136 tiles of gate and as many of up, 4352 columns; one rank has 17408.
    calls = [each for each in dense.expanded(17408, 5120, True, 4096) if isinstance(each, Call)]
    assert [each for each in calls if each.what == "product"] == [
        Call("product", 4 * 2, Product(4096, 4352, 5120, out_bytes=4))
    ]
    # 272 tiles of a layer that is not gated, then 10, of which the last lacks five columns.
    ragged = list(dense.expanded(282 * 32 - 5, 5120, False, 4096))
    assert [each.product.n for each in ragged if isinstance(each, Call)] == [8704, 315]
    assert [each.launch.extent[1] for each in ragged if isinstance(each, Run)] == [272, 10]


def test_an_expansion_takes_its_bytes_time() -> None:
    layer, spec = table.layer_of(4352, 5120, True), table.expansion(True)
    launch = dense.expand(spec, layer, layer.tiles // 2)
    out, weights, scales = (each for each in launch.args if isinstance(each, Buffer))
    # A byte a code in, two out; scales of 272 tiles of 40 blocks as they are packed.
    assert (weights.bytes, out.bytes, scales.bytes) == (44_564_480, 89_128_960, 272 * (2 * 40 + 32) * 4)
    assert out.cold
    found = predict(spec, launch)
    assert found.roofline_us == pytest.approx(133_815_296 / 870e3, abs=0.01)
    assert found.bound == "dram"
    assert 0.9 < found.roofline_share < 1
    assert found.notes == ()


def test_the_table_says_from_where_on_weights_are_expanded() -> None:
    def parts(rows: int, path: Path | None = None) -> Counter[str]:
        return Counter(each.part for each in dense.projections(rows, 4, path))

    assert set(parts(EXPAND_FROM - 1)) == {"gate_up", "down", "qkv", "o", "qkvz", "out"}
    assert {"gate_up expand", "gate_up product", "gate_up silu", "gate_up mul", "out product"} <= set(
        parts(EXPAND_FROM)
    )
    assert set(parts(EXPAND_FROM, "native")) == set(parts(1))
    assert set(parts(64, "expanded")) == set(parts(EXPAND_FROM))


def test_expanded_layers_multiply_as_much_as_native_ones() -> None:
    rows = EXPAND_FROM
    every = list(dense.projections(rows, 4, "native"))
    planned = [each for each in every if isinstance(each, Planned)]
    assert len(planned) == len(every)
    native = sum(each.count * each.launch.products for each in planned)
    calls = [each for each in dense.projections(rows, 4) if isinstance(each, Called)]
    assert sum(each.count * each.product.products for each in calls) == native


def test_only_sampled_rows_meet_the_output_head() -> None:
    head, small = dense.heads(8192, 1, 4)
    assert isinstance(head, Called)
    assert isinstance(small, Called)
    assert head.product == Product(1, 62080, 5120)
    # b and a: one of each for every value head of 48, over four ranks.
    assert (small.count, small.product) == (48, Product(8192, 24, 5120))
    assert [each.part for each in step.launches_of(3, 4, path="native")][-2:] == ["lm_head", "gdn_ba"]


def test_a_head_of_fp8_is_served_by_our_kernel() -> None:
    head, _ = dense.heads(8, 8, 4, "fp8")
    assert isinstance(head, Planned)
    assert head.spec.kernel is table.DENSE
    found = head.predict()
    # 62080 * 5120 bytes at 870 GB/s.
    assert found.roofline_us == pytest.approx(365.3, rel=0.01)
    assert found.notes == ()


def test_the_command_prints_the_library_and_what_the_sum_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--m", "1", "--decode-step"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all("predicted" in line for line in lines)
    (head,) = (line for line in lines if " lm_head " in line)
    assert "predicted  991.69 us x1" in head
    assert head.endswith("M=1 N=62080 K=5120  (cublas_fp16: roofline and a published rate)")
    assert " TP4 all    predicted sum " in lines[-2]
    assert "It lacks: attention and the gated delta net in a step of more rows; collectives;" in lines[-1]


def test_the_command_sums_all_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--m", "8192", "--logits", "1", "--decode-step", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    sums = {each["family"]: each["kernels_ms"] for each in record["steps"]}
    assert {"dense", "norm", "head"} <= sums.keys()
    assert sums["all"] == pytest.approx(sum(ms for family, ms in sums.items() if family != "all"))
    assert record["contains"] == list(step.CONTAINS)
    assert record["lacks"] == list(step.LACKS)
    assert record["machine"]["gemm_share"]["value"] == 0.71
    assert "Markidis" in record["machine"]["gemm_share"]["source"]
    bases = {row["part"]: row["basis"] for row in record["predictions"]}
    assert bases["down expand"] == "machine code"
    assert bases["down product"] == bases["lm_head"] == "roofline and a published rate"


def test_a_sum_of_some_parts_is_not_called_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        command.main(["--m", "1", "--kernel", f"nonesuch,{library.NAME}", "--decode-step", "--loops", "--range"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["lm_head", "gdn_ba"]
    # 754.1 us of bytes at 843 GB/s and 1.0 to start; 1300 at 489 and 1.8.
    assert "(755.1 to 1301.8)" in lines[1]
    assert not any(" all " in line for line in lines)


@pytest.mark.parametrize("value", ["0", "1,2", "x"])
def test_the_command_wants_one_number_of_logits(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--logits", value])
    assert caught.value.code == 2
    assert f"'{value}': one number of at least 1 is wanted" in capsys.readouterr().err
