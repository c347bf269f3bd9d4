"""A machine asked through NVML: what it tells, what it does not, and GPUs that vanish while it is asked."""

from __future__ import annotations

import pynvml
import pytest

from appliance.topology import live
from appliance.topology.islands import is_full_mesh
from appliance.topology.machine import Gpu, Link
from tests.topology.fake_nvml import CPU, SWITCH, Card, FakeNvml, four_v100


def test_four_v100_on_one_board() -> None:
    nvml = FakeNvml(four_v100())
    machine = live.detect(nvml)
    assert machine.driver == "570.172.08"
    assert machine.gpus[2] == Gpu(
        index=2,
        name="Tesla V100-SXM2-16GB",
        capability=(7, 0),
        memory_bytes=16160 * 2**20,
        uuid="GPU-2",
        mig=None,
        ecc=True,
        compute_mode="Default",
        numa_node=1,
    )
    assert machine.links[0] == (Link("self"), *[Link("nvlink", 2, 2, True)] * 3)
    assert is_full_mesh(machine)
    assert machine.notes == ()
    assert nvml.open == 0, "NVML is shut down again"


def test_host_is_told_even_without_a_gpu() -> None:
    machine = live.detect(FakeNvml([], init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert machine.host.cpus
    assert machine.host.memory_bytes


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 is missing; on a machine with GPUs install"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA kernel driver is not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not open /dev/nvidiactl"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions; reboot after a driver upgrade"),
        (pynvml.NVML_ERROR_UNKNOWN, "the host takes the devices away"),
        (pynvml.NVML_ERROR_TIMEOUT, "NVML fails to start: Timeout"),
    ],
)
def test_no_nvml_is_a_machine_without_gpus_that_says_why(error: int, text: str) -> None:
    machine = live.detect(FakeNvml(four_v100(), init_error=error))
    assert machine.gpus == ()
    assert machine.links == ()
    (note,) = machine.notes
    assert note.startswith("no GPU can be seen: ")
    assert text in note
    assert "\n" not in note


def test_the_real_binding_without_a_driver_raises_nothing() -> None:
    machine = live.detect()
    assert machine.gpus or machine.notes


def test_a_driver_that_shows_no_gpu() -> None:
    (note,) = live.detect(FakeNvml([])).notes
    assert "the driver answers but shows no GPU" in note


def test_a_count_that_fails_is_a_note() -> None:
    nvml = FakeNvml(four_v100())
    nvml.errors = {"count": pynvml.NVML_ERROR_UNKNOWN, "driver": pynvml.NVML_ERROR_UNKNOWN}
    machine = live.detect(nvml)
    assert machine.gpus == ()
    assert machine.driver is None
    assert machine.notes == (
        "NVML: number of GPUs could not be read: Unknown Error",
        "NVML: driver version could not be read: Unknown Error",
    )


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND])
def test_a_gpu_that_has_no_handle_is_left_out_by_name(error: int) -> None:
    cards = four_v100()
    cards[1].errors["handle"] = error
    machine = live.detect(FakeNvml(cards))
    assert [gpu.index for gpu in machine.gpus] == [0, 2, 3]
    assert [len(row) for row in machine.links] == [3, 3, 3]
    (note,) = machine.notes
    assert note.startswith("GPU 1 does not answer and is left out: ")


def test_a_gpu_that_this_user_may_not_open_is_left_out_with_the_reason() -> None:
    cards = four_v100()
    cards[3].errors["handle"] = pynvml.NVML_ERROR_NO_PERMISSION
    machine = live.detect(FakeNvml(cards))
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2]
    assert "Insufficient Permissions" in machine.notes[0]


@pytest.mark.parametrize("question", range(1, 90))
def test_a_gpu_lost_at_any_moment_is_named_and_the_others_stay(question: int) -> None:
    nvml = FakeNvml(four_v100())
    nvml.lose_at = {2: question}
    machine = live.detect(nvml)
    if not nvml.cards[2].lost:
        assert len(machine.gpus) == 4, "lost after the last question"
        return
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 3]
    assert [len(row) for row in machine.links] == [3, 3, 3]
    assert machine.links[0][2] == Link("nvlink", 2, 2, True)
    (note,) = machine.notes
    assert note.startswith(("GPU 2 does not answer", "GPU 2 (GPU-2) does not answer"))
    assert "GPU is lost" in note
    assert nvml.open == 0


def test_all_gpus_lost() -> None:
    cards = four_v100()
    for card in cards:
        card.lost = True
    machine = live.detect(FakeNvml(cards))
    assert machine.gpus == ()
    assert [note.partition(" and ")[0] for note in machine.notes] == [f"GPU {i} does not answer" for i in range(4)]


def test_a_value_that_is_not_supported_is_none_and_alone() -> None:
    questions = ["name", "uuid", "capability", "memory", "mig", "ecc", "mode", "numa", "pci"]
    cards = four_v100()
    cards[0].errors = dict.fromkeys(questions, pynvml.NVML_ERROR_NOT_SUPPORTED)
    machine = live.detect(FakeNvml(cards))
    assert machine.gpus[0] == Gpu(0, "unknown", None, None)
    assert machine.gpus[1].memory_bytes == 16160 * 2**20
    assert machine.notes == ()


def test_a_value_that_fails_otherwise_is_none_with_one_note() -> None:
    cards = four_v100()
    cards[0].errors = {"memory": pynvml.NVML_ERROR_UNKNOWN, "link type": pynvml.NVML_ERROR_UNKNOWN}
    machine = live.detect(FakeNvml(cards))
    assert machine.gpus[0].memory_bytes is None
    assert machine.notes == (
        "GPU 0: memory could not be read: Unknown Error",
        "GPU 0: NVLink's other end could not be read: Unknown Error",
    )
    assert machine.links[0][1].nvlinks == 2, "the address alone tells the other end"


def test_mig_ecc_and_compute_mode() -> None:
    cards = [Card("NVIDIA A100-SXM4-80GB", (8, 0), 80 * 2**30, mig=1, ecc=0, mode=3), Card(mig=0, ecc=None, mode=2)]
    first, second = live.detect(FakeNvml(cards)).gpus
    assert (first.mig, first.ecc, first.compute_mode) == (True, False, "Exclusive_Process")
    assert (second.mig, second.ecc, second.compute_mode) == (False, None, "Prohibited")


def test_numa_node_beyond_the_first_word() -> None:
    (gpu,) = live.detect(FakeNvml([Card(numa=65)])).gpus
    assert gpu.numa_node == 65


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "pix"), (10, "pix"), (20, "pxb"), (30, "phb"), (40, "node"), (50, "sys")]
)
def test_pcie_paths_and_peer_access(level: int, kind: str) -> None:
    nvml = FakeNvml([Card(), Card()])
    nvml.levels = {(0, 1): level, (1, 0): level}
    nvml.peer_status = {(0, 1): pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED, (1, 0): pynvml.NVML_P2P_STATUS_UNKNOWN}
    machine = live.detect(nvml)
    there, back = machine.links[0][1], machine.links[1][0]
    assert (there.kind, there.nvlinks, there.nvlink_version, there.peer_access) == (kind, 0, None, False)
    assert (back.kind, back.peer_access) == (kind, None)


def test_links_that_cannot_be_asked_are_unknown() -> None:
    cards = [Card(errors={"level": pynvml.NVML_ERROR_NOT_SUPPORTED, "peer": pynvml.NVML_ERROR_NOT_SUPPORTED}), Card()]
    assert live.detect(FakeNvml(cards)).links[0][1] == Link("unknown")


def test_nvlinks_to_a_cpu_or_to_a_gpu_out_of_sight_join_nothing() -> None:
    machine = live.detect(FakeNvml([Card(links=[CPU, CPU, 7]), Card(links=[CPU, CPU, 7])]))
    assert machine.links[0][1].kind == "sys"


def test_nvlinks_to_a_switch_join_every_pair_with_what_both_have() -> None:
    machine = live.detect(FakeNvml([Card(links=[SWITCH] * 6), Card(links=[SWITCH] * 6), Card(links=[SWITCH] * 5)]))
    assert [link.nvlinks for link in machine.links[0]] == [0, 6, 5]
    assert is_full_mesh(machine)


def test_a_pair_that_says_lost_while_both_gpus_answer_is_unknown_with_a_note() -> None:
    nvml = FakeNvml([Card(errors={"level": pynvml.NVML_ERROR_GPU_IS_LOST}), Card()])
    machine = live.detect(nvml)
    assert len(machine.gpus) == 2
    assert machine.links[0][1].kind == "unknown"
    assert "GPU 0: PCIe path to GPU 1 could not be read: GPU is lost" in machine.notes
