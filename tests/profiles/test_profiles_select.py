"""Which profile each recorded machine gets, and every reason why it does not get the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from appliance.errors import CheckError, ConfigurationError
from appliance.models.checkpoint import Checkpoint
from appliance.paths import TOPOLOGIES
from appliance.profiles import catalogue
from appliance.profiles.select import assess
from appliance.topology.machine import Gpu, Host, Link, Machine
from appliance.topology.recorded import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("complete_build")

PROFILES = catalogue.load_all()
RELEASE = "qwen38_27b_nvfp4_dflash2"
PORTABLE = "portable_smollm2"
FP8 = Checkpoint("m", "fp8_block", "fp8", "Qwen3_5ForConditionalGeneration", 30866866928, ())
NVFP4 = Checkpoint("m", "nvfp4", "nvfp4", "Qwen3_5ForConditionalGeneration", 19_700_000_000, ())


def recorded(name: str) -> Machine:
    return load(TOPOLOGIES / f"{name}.json")


def reasons(machine: Machine, profile: str, checkpoint: Checkpoint | None = None) -> list[str]:
    return list(assess(machine, PROFILES, checkpoint).find(profile).reasons)


def with_gpus(machine: Machine, **changed: object) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, **changed) for gpu in machine.gpus))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "checkpoint", "chosen", "gpus"),
    [
        ("4xv100-sxm2-16gb", None, RELEASE, (0, 1, 2, 3)),
        ("4xv100-sxm2-16gb", NVFP4, RELEASE, (0, 1, 2, 3)),
        ("4xv100-sxm2-16gb", FP8, "qwen38_27b_fp8_c32", (0, 1, 2, 3)),
        ("4xv100-sxm2-32gb", None, RELEASE, (0, 1, 2, 3)),
        ("4xv100-sxm2-32gb", FP8, "qwen38_27b_fp8_32k", (0, 1, 2, 3)),
        ("8xv100-dgx1", None, RELEASE, (0, 1, 2, 3)),
        ("2xv100-sxm2-32gb", None, "qwen38_27b_fp8_tp2", (0, 1)),
        ("3xv100-1xt4", None, "qwen38_27b_fp8_tp2", (0, 1)),
        ("4xv100-pcie-split", None, "qwen38_27b_fp8_tp2", (0, 1)),
        ("4xv100-pcie-split", NVFP4, None, ()),
        ("2xv100-sxm2-32gb", NVFP4, None, ()),
        ("1xh200", None, None, ()),
        ("none", None, PORTABLE, ()),
        ("none", FP8, None, ()),
    ],
)
def test_recorded_machines(
    machine: str, checkpoint: Checkpoint | None, chosen: str | None, gpus: tuple[int, ...]
) -> None:
    selection = assess(recorded(machine), PROFILES, checkpoint)
    assert (selection.chosen, selection.gpus) == (chosen, gpus)
    everyone = {fit.profile for fit in (*selection.ranked, *selection.rejected)}
    assert everyone == set(catalogue.names())
    assert all(fit.reasons for fit in (*selection.ranked, *selection.rejected) if fit.profile != chosen)
    assert json.loads(json.dumps(selection.to_json()))["chosen"] == chosen


@pytest.mark.parametrize("path", sorted(TOPOLOGIES.glob("*.json")), ids=lambda path: path.stem)
def test_every_recording_is_judged(path: Path) -> None:
    selection = assess(load(path), PROFILES)
    assert (selection.chosen is None) is (selection.problem is not None)


def test_one_that_fits_but_is_not_chosen_says_so() -> None:
    selection = assess(recorded("4xv100-sxm2-32gb"), PROFILES)
    assert selection.find("qwen38_27b_fp8_32k").reasons == (f"fits, but {RELEASE} is preferred",)
    assert selection.ranked[0].profile == RELEASE


def test_idle_gpus_are_told() -> None:
    assert assess(recorded("8xv100-dgx1"), PROFILES).warnings == ("GPUs 4-7 stay idle",)
    assert assess(recorded("4xv100-sxm2-16gb"), PROFILES).warnings == ()


def test_too_few_gpus_of_the_wrong_kind_are_two_reasons() -> None:
    assert reasons(recorded("1xh200"), RELEASE) == [
        "GPU 0 (NVIDIA H200): compute capability 9.0, and the kernels are for 7.0",
        "it needs 4 GPUs and this machine has 1",
    ]


def test_a_gpu_of_another_kind_counts_against_four_but_not_against_two() -> None:
    found = reasons(recorded("3xv100-1xt4"), RELEASE)
    assert found[0] == "GPU 3 (Tesla T4): compute capability 7.5, and the kernels are for 7.0"
    assert "it needs 4 GPUs and 3 of 4 qualify" in found
    assert reasons(recorded("3xv100-1xt4"), "qwen38_27b_fp8_tp2") == []


def test_links_name_the_pair_and_the_path() -> None:
    assert reasons(recorded("4xv100-pcie-split"), RELEASE) == [
        "links: GPU 0 and GPU 2 cannot read each other's memory over the link between NUMA nodes (SYS) "
        "(and 3 more pairs of GPUs 0-3)"
    ]


def test_memory_gives_the_plans_numbers() -> None:
    found = reasons(recorded("4xv100-sxm2-16gb"), "qwen38_27b_fp8_tp2")
    assert found[0].startswith("GPUs 0-3 (Tesla V100-SXM2-16GB): memory: 15.14 GiB weights + ")
    assert found[1] == "it needs 2 GPUs and 0 of 4 qualify"


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ("535.104.05", "driver 535.104.05 is outside 570-580: CUDA 12.8 needs a newer one"),
        ("590.44.01", "driver 590.44.01 is outside 570-580: later branches know no Volta"),
        (None, "the driver is unknown: give the XML of `nvidia-smi -q -x`"),
        ("N/A", 'the driver is "N/A", which is no version'),
    ],
)
def test_driver(driver: str | None, reason: str) -> None:
    assert reasons(replace(recorded("4xv100-sxm2-16gb"), driver=driver), RELEASE) == [reason]


@pytest.mark.parametrize("driver", ["570.00", "575.57.08", "580.95.05"])
def test_drivers_of_the_range_fit(driver: str) -> None:
    assert reasons(replace(recorded("4xv100-sxm2-16gb"), driver=driver), RELEASE) == []


def test_mig_and_compute_mode_are_reasons_with_their_cure() -> None:
    machine = recorded("4xv100-sxm2-16gb")
    first, *others = machine.gpus
    shut = replace(machine, gpus=(replace(first, mig=True, compute_mode="Prohibited"), *others))
    assert reasons(shut, RELEASE) == [
        "GPU 0 (Tesla V100-SXM2-16GB): in MIG mode; turn it off (`nvidia-smi -i 0 -mig 0`)",
        "GPU 0 (Tesla V100-SXM2-16GB): compute mode Prohibited; set it back (`nvidia-smi -i 0 -c DEFAULT`)",
        "it needs 4 GPUs and 3 of 4 qualify",
    ]
    exclusive = with_gpus(machine, compute_mode="Exclusive_Process")
    assert reasons(exclusive, RELEASE)[-1] == "it needs 4 GPUs and 0 of 4 qualify"


def test_another_four_are_taken_where_one_of_eight_is_shut() -> None:
    machine = recorded("8xv100-dgx1")
    gpus = tuple(replace(gpu, compute_mode="Prohibited") if gpu.index == 1 else gpu for gpu in machine.gpus)
    assert assess(replace(machine, gpus=gpus), PROFILES).gpus == (4, 5, 6, 7)


def test_shared_memory() -> None:
    machine = recorded("4xv100-sxm2-16gb")
    small = replace(machine, host=replace(machine.host, shm_bytes=64 * 2**20))
    assert reasons(small, RELEASE) == [
        "shared memory (/dev/shm) has 0.1 GiB and 1.0 GiB is needed (Docker: shm_size or ipc: host)"
    ]
    unknown = assess(replace(machine, host=Host()), PROFILES)
    assert unknown.chosen == RELEASE
    assert unknown.warnings == ("the size of /dev/shm is unknown; at least 1.0 GiB is needed",)


def test_a_pasted_matrix_alone_leaves_names_memory_and_driver_unknown() -> None:
    links = tuple(tuple(Link("self") if i == j else Link("nvlink", 2) for j in range(4)) for i in range(4))
    gpus = tuple(Gpu(i, f"GPU{i}", None, None) for i in range(4))
    found = reasons(Machine("pasted", "topo", gpus, links), RELEASE)
    assert found[0] == "the driver is unknown: give the XML of `nvidia-smi -q -x`"
    assert any("memory unknown: give the XML of `nvidia-smi -q -x`" in reason for reason in found)
    assert any("compute capability unknown: give the XML" in reason for reason in found)


def test_peer_access_that_nobody_tells_is_not_assumed_over_pcie() -> None:
    machine = recorded("4xv100-sxm2-16gb")
    links = tuple(tuple(Link("self") if i == j else Link("phb") for j in range(4)) for i in range(4))
    assert reasons(replace(machine, links=links), RELEASE) == [
        "links: GPU 0 and GPU 1 are joined by the host bridge (PHB), and whether they can read each other's memory is "
        "unknown (and 5 more pairs of GPUs 0-3)"
    ]


def test_checkpoint_of_another_kind_or_architecture() -> None:
    other = replace(FP8, architecture="LlamaForCausalLM")
    assert reasons(recorded("4xv100-sxm2-32gb"), RELEASE, other) == [
        "the checkpoint is fp8_block (fp8) and the profile is for nvfp4",
        "the checkpoint's architecture is LlamaForCausalLM and the profile is for Qwen3_5ForConditionalGeneration or "
        "Qwen3_5ForCausalLM",
    ]


def test_a_lost_gpu_leaves_indices_with_a_hole() -> None:
    machine = recorded("8xv100-dgx1")
    keep = [1, 2, 3, 4, 5, 6, 7]
    links = tuple(tuple(machine.links[i][j] for j in keep) for i in keep)
    left = replace(machine, gpus=tuple(machine.gpus[i] for i in keep), links=links)
    assert assess(left, PROFILES).gpus == (4, 5, 6, 7)


def test_with_gpus_the_cpu_engine_is_started_only_when_pinned() -> None:
    machine = recorded("1xh200")
    with pytest.raises(CheckError) as error:
        assess(machine, PROFILES).required()
    message = str(error.value)
    assert message.startswith("no profile fits this machine and model: ")
    assert "this machine has GPUs (1 × NVIDIA H200)" in message
    assert "APPLIANCE_PROFILE=portable_smollm2" in message
    assert "\n" not in message
    pinned = assess(machine, PROFILES, pinned=PORTABLE)
    assert (pinned.chosen, pinned.source, pinned.gpus) == (PORTABLE, "pinned", ())


def test_host_memory_of_the_cgroup_counts() -> None:
    machine = recorded("none")
    small = replace(machine, host=replace(machine.host, cgroup_memory_bytes=2**30))
    found = reasons(small, PORTABLE)
    assert found[0].startswith("memory: 0.25 GiB weights + 2.00 GiB workspaces = 2.25 GiB")
    assert reasons(replace(machine, host=Host()), PORTABLE) == ["the host's memory is unknown"]


def test_pinned_that_does_not_fit_stops_with_every_reason() -> None:
    with pytest.raises(CheckError) as error:
        assess(recorded("1xh200"), PROFILES, pinned=RELEASE).required()
    assert str(error.value) == (
        f"profile {RELEASE} does not fit this machine: GPU 0 (NVIDIA H200): compute capability 9.0, and the kernels "
        "are for 7.0; it needs 4 GPUs and this machine has 1 (APPLIANCE_FORCE=1 starts it all the same)"
    )


def test_forced_is_chosen_and_its_reasons_become_warnings() -> None:
    selection = assess(recorded("4xv100-pcie-split"), PROFILES, pinned=RELEASE, force=True)
    assert (selection.chosen, selection.source, selection.gpus) == (RELEASE, "forced", (0, 1, 2, 3))
    assert selection.warnings[0].startswith("forced although links: GPU 0 and GPU 2 cannot read")
    assert selection.find("qwen38_27b_fp8_tp2").reasons == (f"fits, but {RELEASE} is forced",)


def test_forced_takes_all_where_there_are_too_few() -> None:
    assert assess(recorded("1xh200"), PROFILES, pinned=RELEASE, force=True).gpus == (0,)
    assert assess(recorded("none"), PROFILES, pinned=RELEASE, force=True).gpus == ()


def test_pinned_that_fits_is_chosen_over_a_preferred_one() -> None:
    selection = assess(recorded("4xv100-sxm2-32gb"), PROFILES, pinned="qwen38_27b_fp8_c32")
    assert selection.chosen == "qwen38_27b_fp8_c32"
    assert selection.find(RELEASE).reasons == ("fits, but qwen38_27b_fp8_c32 is pinned",)


def test_pinned_name_that_is_unknown() -> None:
    with pytest.raises(ConfigurationError, match='no profile "portable_smolm2"; did you mean "portable_smollm2"'):
        assess(recorded("none"), PROFILES, pinned="portable_smolm2")


def test_a_persons_arguments_decide_too() -> None:
    machine = recorded("4xv100-sxm2-16gb")
    assert assess(machine, PROFILES, arguments={"gpu_memory_utilization": 0.92}).chosen is None
    two = assess(recorded("4xv100-sxm2-32gb"), PROFILES, arguments={"tensor_parallel_size": 2})
    assert len(two.gpus) == 2
