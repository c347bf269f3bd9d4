"""Launch a specialisation on torch's current stream, in a few microseconds and safely inside graph capture.

A launch allocates nothing on the device and waits for nothing. The driver copies the parameters during the call, so
one buffer for each thread is enough and a captured graph keeps its own copy. That buffer begins with the driver's
CUlaunchConfig: one packing writes it and the parameters, and the call then has four arguments that never change.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from sm70_kernels.errors import KernelError
from sm70_kernels.launch.module import ensure_context, load_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.registry import Specialisation

Extent: TypeAlias = int | tuple[int, int, int]
Argument: TypeAlias = "torch.Tensor | int | float"

CONFIGURATION = "7IPPI0P"
"""CUlaunchConfig: grid and block in x, y and z, dynamic shared memory, stream, attributes and their number; padded."""


def launch(
    spec: Specialisation, grid: Extent, block: Extent, args: Sequence[Argument], shared_bytes: int | None = None
) -> None:
    """Launch `spec` on the current stream of its tensors' device.

    `grid` counts blocks and `block` threads, as one number or (x, y, z); `args` has a tensor (its address is passed) or
    a number for each letter of the kernel's `params`; `shared_bytes` is the dynamic shared memory, that of `spec` by
    default. The first launch on a device loads the kernel (`prepare` does so ahead of time). The caller keeps tensors
    alive as for any torch operator. Raises KernelError when the kernel cannot be had or the driver refuses the launch,
    ValueError for arguments that do not fit the kernel.
    """
    device = torch._C._cuda_getDevice()
    values: list[int | float] = []
    for value in args:
        # The type decides, not isinstance: torch's metaclass answers that in Python, for each number.
        kind = type(value)
        if kind is int or kind is float:
            values.append(value)
            continue
        tensor: torch.Tensor = value
        where = tensor.get_device()
        if where != device:
            if where < 0 or values:
                raise ValueError(f"{spec.name}: a tensor is on {tensor.device}, the current device is cuda:{device}")
            with torch.cuda.device(where):
                return launch(spec, grid, block, args, shared_bytes)
        values.append(tensor.data_ptr())
    function = _FUNCTIONS.get((spec, device)) or prepare(spec, device)
    function(grid, block, values, spec.shared_bytes if shared_bytes is None else shared_bytes)
    return None


def prepare(spec: Specialisation, device: int) -> _Function:
    """Load `spec` on `device` now, so that no launch has to. Raises KernelError."""
    with _LOADING:
        function = _FUNCTIONS.get((spec, device))
        if function is None:
            function = _FUNCTIONS[spec, device] = _Function(spec, device, int(load_function(spec, device)))
    return function


class _Parameters(threading.local):
    """What the driver reads of one thread: configuration and parameters, and the array of the parameters' addresses."""

    def __init__(self, params: str, device: int) -> None:
        ensure_context(device)
        layout = CONFIGURATION + params
        buffer = ctypes.create_string_buffer(struct.calcsize(layout))
        start = ctypes.addressof(buffer)
        # A letter with count 0 aligns to it without taking room, as C lays out a structure.
        offsets = [struct.calcsize(f"{CONFIGURATION}{params[:i]}0{letter}") for i, letter in enumerate(params)]
        pointers = (ctypes.c_void_p * max(len(params), 1))(*[start + offset for offset in offsets])
        self.all = buffer, ctypes.c_void_p(start), pointers


class _Function:
    """A loaded kernel, ready to be launched from any thread."""

    __slots__ = ("_device", "_handle", "_launch", "_pack", "_parameters", "_spec", "_stream")

    def __init__(self, spec: Specialisation, device: int, handle: int) -> None:
        self._spec = spec
        self._device = device
        self._handle = ctypes.c_void_p(handle)
        self._launch = _driver_launch()
        self._pack = struct.Struct(CONFIGURATION + spec.kernel.params).pack_into
        self._parameters = _Parameters(spec.kernel.params, device)
        # What torch.compile's own launchers ask; torch.cuda.current_stream() makes an object first.
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def __call__(self, grid: Extent, block: Extent, values: list[int | float], shared_bytes: int) -> None:
        gx, gy, gz = (grid, 1, 1) if isinstance(grid, int) else grid
        bx, by, bz = (block, 1, 1) if isinstance(block, int) else block
        if bx * by * bz != self._spec.threads:
            raise ValueError(f"{self._spec.name} is built for blocks of {self._spec.threads} threads, not {block}")
        buffer, configuration, pointers = self._parameters.all
        try:
            self._pack(buffer, 0, gx, gy, gz, bx, by, bz, shared_bytes, self._stream(self._device), 0, 0, *values)
        except struct.error as error:
            wanted = self._spec.kernel.params
            raise ValueError(f"{self._spec.name} takes parameters {wanted}, not {values}: {error}") from error
        result = self._launch(configuration, self._handle, pointers, None)
        if result:
            from cuda.bindings import driver

            said = driver.CUresult(result).name
            text = f"{self._spec.name} cannot be launched on {grid} blocks: cuLaunchKernelEx says {said}"
            raise KernelError(f"launch_failed:{self._spec.kernel.name}", text)


@cache
def _driver_launch() -> Callable[..., int]:
    """Return the driver's cuLaunchKernelEx. cuda-bindings wraps it too, and takes a microsecond longer a call."""
    entry: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    return entry


_FUNCTIONS: dict[tuple[Specialisation, int], _Function] = {}
_LOADING = threading.Lock()
