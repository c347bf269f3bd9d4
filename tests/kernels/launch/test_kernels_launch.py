"""What reaches the driver: the right form of the code, and parameters packed as the kernel reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cuda.bindings.driver import CUresult

from sm70_kernels.errors import KernelError
from sm70_kernels.launch import launcher, module
from sm70_kernels.registry import Kernel, Specialisation

if TYPE_CHECKING:
    from pathlib import Path

ODD = Specialisation(
    Kernel("odd", source="odd.cu", entry="odd", params="PiPfqI", constants=("THREADS",)), {"THREADS": 96}
)

SHARED = Specialisation(ODD.kernel, {"THREADS": 96}, shared_bytes=256)


class Driver:
    """Stands in for torch's launcher: keeps what a launch passed."""

    def __init__(self) -> None:
        self.fails = ""
        self.contexts: list[int] = []
        self.launches: list[dict[str, object]] = []

    def launch(
        self, handle: int, x: int, y: int, z: int, warps: int, shared: int, kinds: str, values: Any, stream: int
    ) -> None:
        if self.fails:
            raise RuntimeError(self.fails)
        shape = {"grid": (x, y, z), "warps": warps, "shared": shared, "stream": stream}
        self.launches.append({"handle": handle, "kinds": kinds, "values": values, **shape})


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    stand_in = Driver()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77 + device, raising=False)
    monkeypatch.setattr(launcher, "load_function", lambda spec, device: 4711)
    monkeypatch.setattr(launcher, "_FUNCTIONS", {})
    monkeypatch.setattr(launcher, "_HERE", launcher._Thread())
    monkeypatch.setattr(launcher, "ensure_context", stand_in.contexts.append)
    monkeypatch.setattr(launcher, "_torch_launch", lambda: stand_in.launch)
    return stand_in


class OnGpu:
    """A tensor as the launcher sees one: an address on a device."""

    def __init__(self, address: int, device: int = 0) -> None:
        self.address = address
        self.device = f"cuda:{device}" if device >= 0 else "cpu"
        self.index = device

    def get_device(self) -> int:
        return self.index

    def data_ptr(self) -> int:
        return self.address


def test_one_number_is_one_dimension_and_the_specialisation_knows_its_shared_memory(driver: Driver) -> None:
    launcher.launch(SHARED, 9, (1, 2, OnGpu(3), 4.0, 5, 6))
    assert driver.launches == [
        {
            "handle": 4711,
            "kinds": "KiKflI",
            "values": (1, 2, 3, 4.0, 5, 6),
            "grid": (9, 1, 1),
            "warps": 3,
            "shared": 256,
            "stream": 77,
        }
    ]


STUB = r"""
#include <stdio.h>
int cuCtxGetCurrent(void** context) { *context = (void*)1; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "the stub refuses"; return 0; }
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** at, void** extra) {
    printf("%d %u %u %u %u %u %u %u %d ", (int)(long)function, gx, gy, gz, bx, by, bz, shared, (int)(long)stream);
    printf("%llx %d %llx %.2f %lld %u\n", *(unsigned long long*)at[0], *(int*)at[1], *(unsigned long long*)at[2],
           *(float*)at[3], *(long long*)at[4], *(unsigned*)at[5]);
    fflush(stdout);
    return gz == 9;
}
"""
CALLER = """
import torch
from unittest import mock
from sm70_kernels.launch import launcher
from sm70_kernels.registry import Kernel, Specialisation
spec = Specialisation(Kernel("odd", "odd.cu", "odd", "PiPfqI", ("THREADS",)), {"THREADS": 96}, shared_bytes=256)
torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream = lambda: 0, lambda device: 77
launcher.load_function = lambda spec, device: 4711
launcher.ensure_context = lambda device: None
for depth in (1, 9):
    try:
        launcher.launch(spec, (3, 2, depth), (0xABCDEF0123456789, -5, 0, 0.25, -(2**40), 2**32 - 1))
    except Exception as error:
        print(error.reason, error)
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_parameters_arrive_as_the_kernel_reads_them(tmp_path: Path) -> None:
    """Torch's own launcher, with a driver in its place that reads the parameters from memory as a kernel would."""
    (tmp_path / "stub.c").write_text(STUB, encoding="utf-8")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "stub.c"], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", CALLER], env=environment, check=True, capture_output=True, text=True)
    passed = "96 1 1 256 77 abcdef0123456789 -5 0 0.25 -1099511627776 4294967295"
    assert ran.stdout.splitlines() == [
        f"4711 3 2 1 {passed}",
        f"4711 3 2 9 {passed}",
        f"launch_failed:odd {SHARED.name} cannot be launched on (3, 2, 9) blocks: CUDA driver error: the stub refuses",
    ]


def test_each_thread_takes_the_devices_context_before_its_first_launch(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 3, raising=False)
    for _ in range(2):
        launcher.launch(ODD, 1, (1, 2, 3, 4.0, 5, 6))
    assert driver.contexts == [3]
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(launcher.launch, ODD, 1, (1, 2, 3, 4.0, 5, 6)).result()
    assert driver.contexts == [3, 3]


def test_blocks_are_whole_warps(driver: Driver) -> None:
    with pytest.raises(ValueError, match="odd-threads48: a block of 48 threads is not made of whole warps"):
        launcher.launch(Specialisation(ODD.kernel, {"THREADS": 48}), 1, (1, 2, 3, 4.0, 5, 6))


def test_a_kernel_is_loaded_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def load(spec: Specialisation, device: int) -> int:
        loads.append(spec.name)
        return 4711

    monkeypatch.setattr(launcher, "load_function", load)
    for _ in range(3):
        launcher.launch(ODD, 1, (1, 2, 3, 4.0, 5, 6))
    assert loads == ["odd-threads96"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((1, 2, 3, 4.0, 5), "odd-threads96 takes parameters PiPfqI, not"),
        ((1, 2**31, 3, 4.0, 5, 6), "odd-threads96 takes parameters PiPfqI, not"),
        ((OnGpu(1, -1), 2, 3, 4.0, 5, 6), "a tensor is on cpu, the current device is cuda:0"),
        ((OnGpu(1), 2, OnGpu(1, 1), 4.0, 5, 6), "a tensor is on cuda:1, the current device is cuda:0"),
    ],
    ids=["too few", "too big", "cpu", "two devices"],
)
def test_arguments_that_do_not_fit_are_refused(driver: Driver, arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        launcher.launch(ODD, 1, arguments)
    assert not driver.launches


def test_a_refused_launch_says_what_the_driver_said(driver: Driver) -> None:
    driver.fails = "CUDA driver error: invalid argument"
    says = "odd-threads96 cannot be launched on 1 blocks: CUDA driver error: invalid argument"
    with pytest.raises(KernelError, match=says) as caught:
        launcher.launch(ODD, 1, (1, 2, 3, 4.0, 5, 6))
    assert caught.value.reason == "launch_failed:odd"


@pytest.mark.parametrize(("capability", "form"), [((7, 0), "cubin"), ((7, 5), "ptx"), ((9, 0), "ptx")])
def test_volta_loads_cubins_and_newer_ones_ptx(capability: tuple[int, int], form: str) -> None:
    assert module.form_for("odd", capability, "NVIDIA X") == form


def test_a_turing_card_loads_cubins_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOADS_CUBINS", {(7, 0)})
    module.take_cubins_on_turing()
    assert [module.form_for("odd", (7, minor), "NVIDIA X") for minor in (0, 5)] == ["cubin", "cubin"]
    assert module.form_for("odd", (8, 0), "NVIDIA X") == "ptx"


def test_anything_older_is_refused() -> None:
    says = r"Tesla P100 has compute capability 6.0: these kernels want 7.0 or newer"
    with pytest.raises(KernelError, match=says) as caught:
        module.form_for("odd", (6, 0), "Tesla P100")
    assert caught.value.reason == "operator_missing:odd"


class Functions:
    """Stands in for the driver's questions about a function of `static` bytes; keeps what was asked for."""

    class CUfunction_attribute:  # noqa: N801, the driver's name
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self, static: int, result: CUresult = CUresult.CUDA_SUCCESS) -> None:
        self.static = static
        self.result = result
        self.asked: list[tuple[int, int]] = []

    def cuFuncGetAttribute(self, attribute: int, function: object) -> tuple[CUresult, int]:  # noqa: N802
        assert (attribute, function) == (1, 4711)
        return CUresult.CUDA_SUCCESS, self.static

    def cuFuncSetAttribute(self, function: object, attribute: int, size: int) -> tuple[CUresult]:  # noqa: N802
        assert function == 4711
        self.asked.append((attribute, size))
        return (self.result,)


@pytest.mark.parametrize(
    ("static", "dynamic", "asked"),
    [(0, 49152, []), (1, 49152, [(8, 49152)]), (16, 49136, []), (16, 49137, [(8, 49137)]), (0, 65536, [(8, 65536)])],
)
def test_shared_memory_is_asked_for_when_static_and_dynamic_exceed_what_any_block_may_have(
    static: int, dynamic: int, asked: list[tuple[int, int]]
) -> None:
    functions = Functions(static)
    spec = Specialisation(ODD.kernel, {"THREADS": 96}, shared_bytes=dynamic)
    module._ask_for_shared_memory(functions, spec, 4711)  # type: ignore[arg-type]
    assert functions.asked == asked


def test_shared_memory_that_the_driver_refuses_is_said() -> None:
    functions = Functions(4, CUresult.CUDA_ERROR_INVALID_VALUE)
    spec = Specialisation(ODD.kernel, {"THREADS": 96}, shared_bytes=49152)
    says = "odd-threads96-shared49152 cannot be loaded: cuFuncSetAttribute says CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(KernelError, match=says):
        module._ask_for_shared_memory(functions, spec, 4711)  # type: ignore[arg-type]
