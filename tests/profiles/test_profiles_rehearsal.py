"""What a profile for V100s asks of another machine when a person names the platform, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.acceleration.platforms import AUTO, REFERENCE, SM70
from appliance.paths import TOPOLOGIES
from appliance.profiles import catalogue
from appliance.profiles.fit import Judge
from appliance.profiles.rehearsal import rehearsed
from appliance.profiles.select import Selection, assess
from appliance.topology.machine import Host
from appliance.topology.recorded import load

PROFILES = catalogue.load_all()
PROFILE = "qwen38_27b_fp8_32k"
ONE_GPU = {"tensor_parallel_size": 1}
H200 = load(TOPOLOGIES / "1xh200.json")


def on_h200(platform: str, capability: tuple[int, int] = (9, 0), driver: str = "595.10") -> Selection:
    machine = replace(H200, driver=driver, gpus=(replace(H200.gpus[0], capability=capability),))
    return assess(machine, PROFILES, pinned=PROFILE, arguments=ONE_GPU, platform=platform)


def test_sm70_takes_a_newer_card_and_a_newer_driver_and_says_that_no_figure_is_a_v100s() -> None:
    selection = on_h200(SM70)
    assert (selection.chosen, selection.gpus, selection.source) == (PROFILE, (0,), "pinned")
    (warning,) = selection.warnings
    assert warning == selection.find(PROFILE).rehearsal
    assert warning.startswith("rehearsal: vllm_platform sm70 runs a V100's kernels on NVIDIA H200")
    assert warning.endswith("(compute capability 9.0); no time and no rate that it gives is a V100's")


def test_nobody_rehearses_unasked() -> None:
    selection = on_h200(AUTO)
    assert selection.chosen is None
    reasons = selection.find(PROFILE).reasons
    assert "driver 595.10 is outside 570-580: later branches know no Volta" in reasons
    assert any("compute capability 9.0, and the kernels are for 7.0" in reason for reason in reasons)
    assert selection.find(PROFILE).rehearsal is None


def test_an_older_card_and_an_older_driver_rehearse_nothing() -> None:
    assert "compute capability 6.1, and the kernels are for 7.0" in str(on_h200(SM70, capability=(6, 1)).problem)
    told = str(on_h200(SM70, driver="550.5").problem)
    assert "driver 550.5 is outside 570 and newer: CUDA 12.8 needs a newer one" in told


def test_sm70_on_v100s_is_no_rehearsal() -> None:
    machine = load(TOPOLOGIES / "4xv100-sxm2-32gb.json")
    asked = assess(machine, PROFILES, platform=SM70)
    assert (asked.chosen, asked.warnings) == (PROFILE, ())
    assert asked.find(PROFILE).rehearsal is None


def test_the_references_need_no_gpu_and_the_hosts_memory() -> None:
    profile = rehearsed(catalogue.load(PROFILE), REFERENCE)
    assert (profile.engine, profile.needs.gpus, profile.needs.driver_min) == ("portable", 0, None)
    machine = load(TOPOLOGIES / "none.json")
    large = replace(machine, host=replace(machine.host, memory_bytes=2**40, cgroup_memory_bytes=None))
    selection = assess(large, PROFILES, pinned=PROFILE, platform=REFERENCE)
    assert (selection.chosen, selection.gpus) == (PROFILE, ())
    assert "sm70-reference computes every operator by its reference on this machine's CPU" in selection.warnings[0]
    memory = selection.find(PROFILE).memory
    assert memory is not None
    assert memory.device == "host"
    small = replace(machine, host=Host(memory_bytes=2**30, shm_bytes=2**31))
    assert "is more than the 1.00 GiB that may be used" in str(
        assess(small, PROFILES, pinned=PROFILE, platform=REFERENCE).problem
    )


@pytest.mark.parametrize("platform", [SM70, REFERENCE])
def test_the_cpu_engines_own_profile_is_no_rehearsal(platform: str) -> None:
    portable = catalogue.load("portable_smollm2")
    assert rehearsed(portable, platform) == portable
    fit = Judge(load(TOPOLOGIES / "none.json"), portable, None, None, None, None, platform).fit(pinned=True)
    assert fit.reasons == (
        f"vllm_platform {platform} rehearses profiles for V100s, and this one is the CPU engine's own",
    )
