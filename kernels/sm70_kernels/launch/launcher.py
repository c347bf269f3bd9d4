"""Launch a specialisation on torch's current stream, in a few microseconds and safely inside graph capture.

A launch allocates nothing on the device and waits for nothing; the driver copies the parameters during the call. The
call itself is the one that torch.compile makes for its own kernels: compiled code of the torch that is pinned here. It
cuts a number to the parameter's width without a word, so each is packed first, which refuses what does not fit.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, TypeAlias

import torch

from sm70_kernels.errors import KernelError
from sm70_kernels.launch.module import ensure_context, load_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.registry import Specialisation

Extent: TypeAlias = int | tuple[int, int, int]
Argument: TypeAlias = "torch.Tensor | int | float"

_KINDS = str.maketrans("PqQ", "KlK")
"""The letters of `Kernel.params` in the alphabet of torch's launcher, where the others are the same."""


def launch(spec: Specialisation, grid: Extent, args: Sequence[Argument]) -> None:
    """Launch `spec` on the current stream of its tensors' device.

    `grid` counts blocks, as one number or (x, y, z); `args` has a tensor (its address is passed) or a number for each
    letter of the kernel's `params`. The first launch on a device loads the kernel (`prepare` does so ahead of time).
    The caller keeps tensors alive as for any torch operator. Raises KernelError when the kernel cannot be had or the
    driver refuses the launch, ValueError for arguments that do not fit the kernel.
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
                return launch(spec, grid, args)
        values.append(tensor.data_ptr())
    function = _FUNCTIONS.get((spec, device)) or prepare(spec, device)
    function(grid, values)
    return None


def prepare(spec: Specialisation, device: int) -> _Function:
    """Load `spec` on `device` now, so that no launch has to. Raises KernelError."""
    with _LOADING:
        function = _FUNCTIONS.get((spec, device))
        if function is None:
            function = _FUNCTIONS[spec, device] = _Function(spec, device, int(load_function(spec, device)))
    return function


class _Function:
    """A loaded kernel, ready to be launched from any thread."""

    __slots__ = ("_device", "_fits", "_handle", "_kinds", "_launch", "_shared", "_spec", "_stream", "_warps")

    def __init__(self, spec: Specialisation, device: int, handle: int) -> None:
        if spec.threads % 32:
            raise ValueError(f"{spec.name}: a block of {spec.threads} threads is not made of whole warps")
        self._spec = spec
        self._device = device
        self._handle = handle
        self._warps = spec.threads // 32
        self._shared = spec.shared_bytes
        self._kinds = spec.kernel.params.translate(_KINDS)
        self._fits = struct.Struct(spec.kernel.params).pack
        self._launch = _torch_launch()
        # What torch.compile's own launchers ask; torch.cuda.current_stream() makes an object first.
        self._stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def __call__(self, grid: Extent, values: list[int | float]) -> None:
        x, y, z = grid if type(grid) is tuple else (grid, 1, 1)
        try:
            self._fits(*values)
        except struct.error as error:
            wanted = self._spec.kernel.params
            raise ValueError(f"{self._spec.name} takes parameters {wanted}, not {values}: {error}") from error
        if self._device not in _HERE.devices:
            # torch's launcher gives a thread without a context that of device 0.
            ensure_context(self._device)
            _HERE.devices.add(self._device)
        stream = self._stream(self._device)
        try:
            self._launch(self._handle, x, y, z, self._warps, self._shared, self._kinds, tuple(values), stream)
        except RuntimeError as error:
            text = f"{self._spec.name} cannot be launched on {grid} blocks: {error}"
            raise KernelError(f"launch_failed:{self._spec.kernel.name}", text) from error


def _torch_launch() -> Callable[..., None]:
    launch: Callable[..., None] = torch._C._StaticCudaLauncher._launch_kernel
    return launch


class _Thread(threading.local):
    """The devices on which this thread has launched."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_HERE = _Thread()
_FUNCTIONS: dict[tuple[Specialisation, int], _Function] = {}
_LOADING = threading.Lock()
