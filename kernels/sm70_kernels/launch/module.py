"""Load one specialisation on one device, through the driver API."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import torch

from sm70_kernels.build import store
from sm70_kernels.errors import missing
from sm70_kernels.hardware import SHARED_WITHOUT_ASKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from cuda.bindings.driver import CUfunction

    from sm70_kernels.build.manifest import Form
    from sm70_kernels.registry import Specialisation


_LOADS_CUBINS = {(7, 0)}
TURING = (7, 5)


def take_cubins_on_turing() -> None:
    """Let a Turing card load the machine code for sm_70 in this process, instead of compiling PTX for itself.

    It has the same instructions. For proofs and benchmarks, which ask what that machine code does.
    """
    _LOADS_CUBINS.add(TURING)


def form_for(kernel: str, capability: tuple[int, int], device: str) -> Form:
    """Return which form a GPU of this compute capability loads. Raises KernelError below 7.0."""
    if capability < (7, 0):
        text = f"{device} has compute capability {capability[0]}.{capability[1]}: these kernels want 7.0 or newer"
        raise missing(kernel, text)
    return "cubin" if capability in _LOADS_CUBINS else "ptx"


def load_function(spec: Specialisation, device: int) -> CUfunction:
    """Load `spec` in the primary context of `device`. Returns the driver's function handle.

    The module stays for the life of the process: a captured graph may launch from it at any time. Raises KernelError.
    """
    driver = _driver(spec)
    form = form_for(spec.kernel.name, torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))
    code = store.load(spec, form)
    with torch.cuda.device(device), _allowed_in_capture(driver):
        ensure_context(device)
        module = _loaded(driver.cuModuleLoadData(code + b"\0" if form == "ptx" else code), spec, "cuModuleLoadData")
        entry = spec.kernel.entry.encode()
        function = _loaded(driver.cuModuleGetFunction(module, entry), spec, "cuModuleGetFunction")
        _ask_for_shared_memory(driver, spec, function)
    return function


def _ask_for_shared_memory(driver: ModuleType, spec: Specialisation, function: object) -> None:
    attributes = driver.CUfunction_attribute
    # Under lazy loading, asking for an attribute is also what brings the code to the device before the first launch.
    asked = driver.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
    static = cast("int", _loaded(asked, spec, "cuFuncGetAttribute"))
    # The bound is on both kinds together, what is asked for is the dynamic part.
    if static + spec.shared_bytes > SHARED_WITHOUT_ASKING:
        dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _loaded(driver.cuFuncSetAttribute(function, dynamic, spec.shared_bytes), spec, "cuFuncSetAttribute")


def ensure_context(device: int) -> None:
    """Make the primary context of `device` current in this thread when none, or another device's, is.

    torch leaves that to the first runtime call that needs it, and a driver call in a fresh thread may come before.
    """
    from cuda.bindings import driver

    _, current = driver.cuCtxGetCurrent()
    _, handle = driver.cuDeviceGet(device)
    if int(current) == 0 or int(driver.cuCtxGetDevice()[1]) != int(handle):
        _, primary = driver.cuDevicePrimaryCtxRetain(handle)
        driver.cuCtxSetCurrent(primary)


def _loaded(result: tuple[Any, ...], spec: Specialisation, call: str) -> object:
    if result[0].value != 0:
        raise missing(spec.kernel.name, f"{spec.name} cannot be loaded: {call} says {result[0].name}")
    return result[1] if len(result) > 1 else None


def _driver(spec: Specialisation) -> ModuleType:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise missing(
            spec.kernel.name, f"cuda-bindings is not installed, so nothing can be launched: {error}"
        ) from error
    module: ModuleType = driver
    return module


@contextlib.contextmanager
def _allowed_in_capture(driver: ModuleType) -> Iterator[None]:
    """Let this thread load modules although a stream capture may be under way: loading is not part of the graph."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
