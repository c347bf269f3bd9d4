"""What reaches the driver: the right form of the code, and parameters packed as the kernel reads them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from cuda.bindings.driver import CUresult

from sm70_kernels.errors import KernelError
from sm70_kernels.launch import launcher, module
from sm70_kernels.registry import Kernel, Specialisation

ODD = Specialisation(
    Kernel("odd", source="odd.cu", entry="odd", params="PiPfqI", constants=("THREADS",)), {"THREADS": 96}
)


class Driver:
    """Stands in for the driver: keeps what a launch passed, reading it from memory as the driver does."""

    def __init__(self) -> None:
        self.result = 0
        self.launches: list[dict[str, object]] = []

    def launch(self, configuration: ctypes.c_void_p, handle: ctypes.c_void_p, pointers: Any, extra: None) -> int:
        kinds: list[Any] = [
            ctypes.c_uint64,
            ctypes.c_int32,
            ctypes.c_uint64,
            ctypes.c_float,
            ctypes.c_int64,
            ctypes.c_uint32,
        ]
        values = [kind.from_address(address).value for kind, address in zip(kinds, pointers, strict=True)]
        seen = Configuration.from_address(configuration.value or 0)
        shape = {"grid": tuple(seen.grid), "block": tuple(seen.block), "shared": seen.shared, "stream": seen.stream}
        assert (seen.attributes, seen.number, extra) == (None, 0, None)
        self.launches.append({"handle": handle.value, "values": values, **shape})
        return self.result


class Configuration(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("number", ctypes.c_uint),
    )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    stand_in = Driver()
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77 + device, raising=False)
    monkeypatch.setattr(launcher, "load_function", lambda spec, device: 4711)
    monkeypatch.setattr(launcher, "ensure_context", lambda device: None)
    monkeypatch.setattr(launcher, "_FUNCTIONS", {})
    monkeypatch.setattr(launcher, "_driver_launch", lambda: stand_in.launch)
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


def test_parameters_arrive_as_the_kernel_reads_them(driver: Driver) -> None:
    arguments = (OnGpu(0xABCDEF0123456789), -5, 0, 0.25, -(2**40), 2**32 - 1)
    launcher.launch(ODD, (3, 2, 1), (32, 3, 1), arguments, 256)
    (seen,) = driver.launches
    assert seen["values"] == [0xABCDEF0123456789, -5, 0, 0.25, -(2**40), 2**32 - 1]
    assert seen["grid"] == (3, 2, 1)
    assert seen["block"] == (32, 3, 1)
    assert seen["shared"] == 256
    assert seen["stream"] == 77
    assert seen["handle"] == 4711


def test_one_number_is_one_dimension_and_the_specialisation_knows_its_shared_memory(driver: Driver) -> None:
    spec = Specialisation(ODD.kernel, {"THREADS": 96}, shared_bytes=512)
    launcher.launch(spec, 9, 96, (1, 2, 3, 4.0, 5, 6))
    assert driver.launches[0]["grid"] == (9, 1, 1)
    assert driver.launches[0]["block"] == (96, 1, 1)
    assert driver.launches[0]["shared"] == 512


def test_a_kernel_is_loaded_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def load(spec: Specialisation, device: int) -> int:
        loads.append(spec.name)
        return 4711

    monkeypatch.setattr(launcher, "load_function", load)
    for _ in range(3):
        launcher.launch(ODD, 1, 96, (1, 2, 3, 4.0, 5, 6))
    assert loads == ["odd-threads96"]


@pytest.mark.parametrize(
    ("block", "arguments", "says"),
    [
        (64, (1, 2, 3, 4.0, 5, 6), "odd-threads96 is built for blocks of 96 threads, not 64"),
        (96, (1, 2, 3, 4.0, 5), "odd-threads96 takes parameters PiPfqI, not"),
        (96, (1, 2**31, 3, 4.0, 5, 6), "odd-threads96 takes parameters PiPfqI, not"),
        (96, (OnGpu(1, -1), 2, 3, 4.0, 5, 6), "a tensor is on cpu, the current device is cuda:0"),
        (96, (OnGpu(1), 2, OnGpu(1, 1), 4.0, 5, 6), "a tensor is on cuda:1, the current device is cuda:0"),
    ],
    ids=["block", "too few", "too big", "cpu", "two devices"],
)
def test_arguments_that_do_not_fit_are_refused(
    driver: Driver, block: int, arguments: tuple[object, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        launcher.launch(ODD, 1, block, arguments)
    assert not driver.launches


def test_a_refused_launch_says_what_the_driver_said(driver: Driver) -> None:
    driver.result = 1
    says = "odd-threads96 cannot be launched on 1 blocks: cuLaunchKernelEx says CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(KernelError, match=says) as caught:
        launcher.launch(ODD, 1, 96, (1, 2, 3, 4.0, 5, 6))
    assert caught.value.reason == "launch_failed:odd"


@pytest.mark.parametrize(("capability", "form"), [((7, 0), "cubin"), ((7, 5), "ptx"), ((9, 0), "ptx")])
def test_volta_loads_cubins_and_newer_ones_ptx(capability: tuple[int, int], form: str) -> None:
    assert module.form_for("odd", capability, "NVIDIA X") == form


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
