"""The attention kernels' machine code for sm_70, and what the predicting model makes of it."""

from __future__ import annotations

import pytest

from sm70_kernels.attention import cases, predict, table
from sm70_kernels.predict.machine.cubin import code_of


@pytest.mark.needs("engine")
@pytest.mark.parametrize("variant", [table.SINGLE, table.DUAL], ids=str)
@pytest.mark.parametrize("kv_format", table.FORMATS.values())
def test_a_batch_of_loads_is_under_way_while_the_one_before_is_used(kv_format: int, variant: table.Variant) -> None:
    """A batch is a tile of keys, or a slice of values of eight tiles; the build itself refuses spills."""
    code = code_of(table.decode(kv_format, 256, 1, variant))
    assert code.registers <= (255 if variant is table.SINGLE else 168)
    wide = [
        index
        for index, each in enumerate(code.program.instructions)
        if each.base == "LDG" and "NA" in each.modifiers and "128" in each.modifiers
    ]
    products = [index for index, each in enumerate(code.program.instructions) if each.base == "HMMA"]
    inside = [index for index in wide if products[0] < index < products[-1]]
    assert len(inside) >= 8
    between = []
    for load in inside:
        barrier = code.program.instructions[load].control.write
        after = next(
            (
                index
                for index, each in enumerate(code.program.instructions)
                if index > load and barrier in each.control.wait
            ),
            len(code.program.instructions),
        )
        between.append(sum(load < index < after for index in products))
    # Four HMMA a product. Of the dual variant's seven batches in halves one shares its barrier with a shuffle.
    ahead = sum(count >= 64 for count in between) / len(between)
    assert ahead == 1 if variant is table.SINGLE else ahead > 0.85


@pytest.mark.needs("engine")
@pytest.mark.parametrize(
    ("batch", "goal"),
    [(predict.Batch(1, 2048, 1, 1), 20.0), (predict.Batch(2, 2048, 8, 1), 40.0)],
    ids=["decode", "verification"],
)
def test_the_model_follows_lengths_that_the_device_reads(batch: predict.Batch, goal: float) -> None:
    planned = list(predict.attend(batch))
    assert [each.part for each in planned] == ["attention_decode", "attention_reduce"]
    found = planned[0].predict()
    assert not any("are touched" in note for note in found.notes), found.notes
    assert found.us < goal


def test_the_gpu_suite_runs_every_kernel_that_is_built_ahead() -> None:
    reached = set()
    for case in cases.cases("suite"):
        sizes = case.sizes
        if case.operator == "kv_cache_write":
            reached.add(table.write(sizes["format"], sizes["head"]))
        if case.operator == "attention_decode":
            sequences, head = sizes["sequences"], sizes["head"]
            tiles = table.row_tiles(sizes["rows"] * sequences, sequences, sizes["group"])
            reached.add(table.decode(sizes["format"], head, tiles, table.variant(sequences, tiles, head)))
            reached.add(table.reduction(head))
        if case.operator == "attention_prefill":
            reached.add(table.prefill(sizes["format"], sizes["head"]))
    assert {spec.name for spec in table.SPECIALISATIONS} == {spec.name for spec in reached}
