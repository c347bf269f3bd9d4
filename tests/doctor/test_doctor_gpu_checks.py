"""Driver, GPUs, libcuda and peer access: what is found, and what a person is told to do."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.doctor import peer_program
from appliance.doctor.checks import gpu, peer
from appliance.paths import TOPOLOGIES
from appliance.topology import recorded

if TYPE_CHECKING:
    from appliance.topology.machine import Machine


def machine(name: str) -> Machine:
    return recorded.load(TOPOLOGIES / f"{name}.json")


FOUR = machine("4xv100-sxm2-16gb")
SPLIT = machine("4xv100-pcie-split")


@pytest.mark.parametrize("version", ["570.86.15", "575.57.08", "580.95.05"])
def test_drivers_that_know_volta_and_cuda_12_8(version: str) -> None:
    check = gpu.driver(version, (), 4, 570, 580)
    assert (check.status, check.found, check.wanted) == ("ok", version, "branch 570 to 580")


def test_an_old_driver() -> None:
    check = gpu.driver("535.183.01", (), 4, 570, 580)
    assert check.line == "NVIDIA driver: 535.183.01; wanted branch 570 to 580; install a driver of branch 580"


def test_a_driver_that_dropped_volta() -> None:
    check = gpu.driver("590.44.01", (), 4, 570, 580)
    assert check.line == (
        "NVIDIA driver: 590.44.01; wanted branch 570 to 580; "
        "install a driver of branch 580, the last one that supports Volta"
    )


def test_no_driver_gives_the_machine_s_own_reason() -> None:
    note = (
        "no GPU can be seen: NVML fails to start with an unknown error; in a container this follows when the host "
        "takes the devices away (a systemd reload does): restart it, and name the devices or use CDI"
    )
    check = gpu.driver(None, (note,), 4, 570, 580)
    assert check.status == "fail"
    assert check.found == "no GPU can be seen: NVML fails to start with an unknown error"
    assert check.todo.endswith("restart it, and name the devices or use CDI")
    assert gpu.driver(None, (), 4, 570, 580).todo == "install the NVIDIA driver and start again"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(None, None, "any branch"), (570, None, "branch 570 or newer"), (None, 580, "branch 580 or older")],
)
def test_open_ranges(low: int | None, high: int | None, words: str) -> None:
    assert gpu.driver("575.1", (), 1, low, high).wanted == words


def test_a_driver_without_a_number() -> None:
    assert gpu.driver("nightly", (), 1, 570, 580).status == "warn"


def test_a_machine_that_needs_no_gpu_is_not_asked_for_one() -> None:
    none = machine("none")
    assert {gpu.driver(None, (), 0, None, None).status, gpu.gpus(none, 0, ()).status, gpu.libcuda(0, None).status} == {
        "skipped"
    }
    assert [check.status for check in peer.skipped()] == ["skipped", "skipped"]


def test_gpus() -> None:
    assert gpu.gpus(FOUR, 4, (0, 1, 2, 3)).status == "ok"


def test_too_few_gpus() -> None:
    check = gpu.gpus(machine("2xv100-sxm2-32gb"), 4, ())
    assert check.status == "fail"
    assert check.wanted == "4 GPUs"
    assert "--profile" in check.todo


def test_a_gpu_that_is_lost() -> None:
    note = "GPU 2 does not answer and is left out: GPU is lost (`dmesg | grep -i xid` may tell why)"
    three = replace(FOUR, source="NVML", gpus=FOUR.gpus[:2] + FOUR.gpus[3:], notes=(note,))
    assert gpu.gpus(three, 4, ()).found == note
    check = gpu.gpus(three, 2, (0, 1))
    assert (check.status, check.found.endswith(note), check.todo) == ("warn", True, "see `appliance topology`")


@pytest.mark.parametrize(
    ("change", "found", "todo"),
    [
        ({"mig": True}, "GPU 1 is split by MIG", "`nvidia-smi -i 1 -mig 0` as root makes it whole"),
        (
            {"compute_mode": "Prohibited"},
            "GPU 1 is in compute mode Prohibited",
            "`nvidia-smi -i 1 -c 0` as root allows programs on it",
        ),
    ],
)
def test_a_gpu_on_which_nothing_may_run(change: dict[str, Any], found: str, todo: str) -> None:
    changed = replace(FOUR, gpus=(FOUR.gpus[0], replace(FOUR.gpus[1], **change), *FOUR.gpus[2:]))
    check = gpu.gpus(changed, 4, (0, 1, 2, 3))
    assert (check.status, check.found, check.todo) == ("fail", found, todo)
    assert gpu.gpus(changed, 2, (2, 3)).status == "ok"


LDCONFIG = """\
3 libs found in cache `/etc/ld.so.cache'
\tlibcudart.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.12
\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so
"""


def test_the_driver_s_own_library() -> None:
    resolved = gpu.parse_ldconfig(LDCONFIG)
    assert resolved == [Path("/lib/x86_64-linux-gnu/libcuda.so.1")]
    assert gpu.libcuda(4, resolved).status == "ok"


def test_a_compat_library_in_the_loader_s_path() -> None:
    line = "\tlibcuda.so.1 (libc6,x86-64) => /usr/local/cuda-12.8/compat/libcuda.so.1\n"
    check = gpu.libcuda(4, gpu.parse_ldconfig(line + LDCONFIG))
    assert check.status == "fail"
    assert check.found == "/usr/local/cuda-12.8/compat/libcuda.so.1 of cuda-compat is in the loader's path"
    assert "Error 803" in check.todo


def test_a_compat_library_that_a_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compat = tmp_path / "compat"
    compat.mkdir()
    (compat / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{compat}")
    resolved = gpu.resolved_libcuda()
    assert resolved is not None
    assert resolved[0] == compat / "libcuda.so.1"
    assert gpu.libcuda(1, resolved).status == "fail"


def test_without_ldconfig_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr("subprocess.run", missing)
    assert gpu.resolved_libcuda() is None
    assert gpu.libcuda(4, None).status == "skipped"


def test_no_library_at_all() -> None:
    check = gpu.libcuda(4, [])
    assert (check.status, check.found) == ("fail", "no libcuda.so.1 in the loader's path")
    assert "--gpus all" in check.todo


def test_peer_access_over_nvlink() -> None:
    check = peer.access(FOUR, (0, 1, 2, 3), "nvlink")
    assert (check.status, check.found) == ("ok", "all 12 directions")


def test_two_islands_without_peer_access_between_them() -> None:
    check = peer.access(SPLIT, (0, 1, 2, 3), "peer")
    assert check.status == "fail"
    assert check.found.startswith("no peer access 0→2")
    assert "ACS" in check.todo
    assert "iommu=pt" in check.todo
    assert peer.access(SPLIT, (0, 1), "peer").status == "ok"
    assert "no NVLink 0→1" in peer.access(SPLIT, (0, 1), "nvlink").found
    assert peer.access(SPLIT, (0, 1, 2, 3), "none").status == "warn"


def test_a_driver_that_does_not_tell() -> None:
    links = tuple(tuple(replace(link, peer_access=None) for link in row) for row in FOUR.links)
    check = peer.access(replace(FOUR, links=links), (0, 1), "nvlink")
    assert (check.status, check.found) == ("warn", "the driver does not tell for 0→1, 1→0")


def test_one_gpu_has_no_peer() -> None:
    assert peer.access(FOUR, (0,), "none").status == "skipped"
    assert peer.access(FOUR, (0, 9), "peer").found == "GPU 9 is not there"


def result(right: bool = True, access: bool = True) -> dict[str, Any]:
    return {"gpus": 2, "pairs": [[0, 1, access, right], [1, 0, access, True]]}


def test_patterns_that_arrive_as_they_were_written() -> None:
    assert peer.data(result(), "nvlink").line == "peer copies: 2 directions carried their pattern"


def test_wrong_bytes_though_the_driver_allows_it() -> None:
    check = peer.data(result(right=False), "none")
    assert (check.status, check.found) == ("fail", "wrong bytes came over 0→1")
    assert "iommu=pt" in check.todo


def test_copies_that_went_through_the_host() -> None:
    assert peer.data(result(access=False), "peer").found == "CUDA gives no peer access 0→1, 1→0"
    assert peer.data(result(access=False), "none").status == "ok"


def test_fewer_gpus_in_torch_than_in_the_driver() -> None:
    assert peer.data({"gpus": 1, "pairs": []}, "peer").found == "torch sees 1 GPU, and two are needed"


def test_copies_that_hang_or_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "LIMIT", 0.2)
    monkeypatch.setattr(peer, "_command", lambda _: ["sleep", "600"])
    check = peer.data(peer.try_copies((0, 1)), "peer")
    assert (check.status, check.found) == ("fail", "the copies did not end within 0 s")
    assert "iommu=pt" in check.todo
    monkeypatch.setattr(peer, "LIMIT", 60)
    monkeypatch.setattr(peer, "_command", lambda _: ["sh", "-c", "echo trace; echo RuntimeError: bad >&2; exit 1"])
    check = peer.data(peer.try_copies((0, 1)), "peer")
    assert (check.status, check.found) == ("fail", "the copies ended early (RuntimeError: bad)")
    assert check.todo.startswith("mend torch first")
    monkeypatch.setattr(peer, "_command", lambda _: ["echo", json.dumps(result())])
    assert peer.data(peer.try_copies((0, 1)), "peer").status == "ok"


class Device:
    """Stands for torch with `count` GPUs, of which the copy to `wrong` changes a word."""

    def __init__(self, count: int, wrong: int | None) -> None:
        self.count, self.wrong = count, wrong
        self.cuda = self
        self.int32 = None

    def device_count(self) -> int:
        return self.count

    def can_device_access_peer(self, a: int, b: int) -> bool:
        return True

    def arange(self, *_: Any, **__: Any) -> Tensor:
        return Tensor((1, 2, 3), self)

    def equal(self, a: Tensor, b: Tensor) -> bool:
        return a.words == b.words


class Tensor:
    def __init__(self, words: tuple[int, ...], torch: Device) -> None:
        self.words, self.torch = words, torch

    def __mul__(self, factor: int) -> Tensor:
        return Tensor(tuple(word * factor for word in self.words), self.torch)

    def __add__(self, term: int) -> Tensor:
        return Tensor(tuple(word + term for word in self.words), self.torch)

    def to(self, device: str) -> Tensor:
        return self + (device == f"cuda:{self.torch.wrong}")

    def cpu(self) -> Tensor:
        return self


def test_the_copying_program_names_gpus_as_the_driver_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    monkeypatch.setitem(sys.modules, "torch", Device(2, None))
    assert peer_program.main([4, 6]) == 0
    assert capsys.readouterr().out == '{"gpus": 2, "pairs": [[4, 6, true, true], [6, 4, true, true]]}\n'
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
    monkeypatch.setitem(sys.modules, "torch", Device(2, 1))
    peer_program.main([4, 6])
    assert "[4, 6, true, false]" in capsys.readouterr().out
