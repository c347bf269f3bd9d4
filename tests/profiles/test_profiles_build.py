"""Which profile each machine gets of this build, whose plugin lacks operators that some profiles need."""

from __future__ import annotations

import pytest

from appliance.models.checkpoint import Checkpoint
from appliance.paths import TOPOLOGIES
from appliance.profiles import catalogue
from appliance.profiles.select import assess
from appliance.topology.recorded import load

PROFILES = catalogue.load_all()
RELEASE = "qwen38_27b_nvfp4_dflash2"
FP8 = Checkpoint("m", "fp8_block", "fp8", "Qwen3_5ForConditionalGeneration", 30866866928, ())
NVFP4 = Checkpoint("m", "nvfp4", "nvfp4", "Qwen3_5ForConditionalGeneration", 19_700_000_000, ())
REASON = (
    "this build has no operators yet for nvfp4_dense, nvfp4_prefill, dflash2_draft, and "
    "nothing else serves those layers"
)


@pytest.mark.parametrize("checkpoint", [None, FP8], ids=["any model", "fp8"])
@pytest.mark.parametrize(
    ("machine", "chosen"),
    [("4xv100-sxm2-16gb", "qwen38_27b_fp8_c32"), ("4xv100-sxm2-32gb", "qwen38_27b_fp8_32k")],
)
def test_four_v100s_of_either_size_get_an_fp8_profile(machine: str, chosen: str, checkpoint: Checkpoint | None) -> None:
    selection = assess(load(TOPOLOGIES / f"{machine}.json"), PROFILES, checkpoint)
    assert selection.chosen == chosen
    assert REASON in selection.find(RELEASE).reasons


def test_nvfp4_is_chosen_by_nobody_but_a_person() -> None:
    machine = load(TOPOLOGIES / "4xv100-sxm2-16gb.json")
    selection = assess(machine, PROFILES, NVFP4)
    assert selection.chosen is None
    assert REASON in str(selection.problem)
    pinned = assess(machine, PROFILES, NVFP4, pinned=RELEASE)
    assert (pinned.chosen, pinned.source, pinned.warnings) == (RELEASE, "pinned", (REASON,))
