"""Small kernels that the tests of the build compile; a source outside `csrc/` is named by its absolute path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels.registry import Kernel, Specialisation

if TYPE_CHECKING:
    from pathlib import Path

SCALE = """
extern "C" __global__ void __launch_bounds__(THREADS) scale(float* out, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] *= FACTOR;
}
"""


def scale(folder: Path, factor: int = 2, text: str = SCALE, params: str = "Pi", name: str = "scale") -> Specialisation:
    """Return a specialisation of the kernel `text`, written to `folder`."""
    source = folder / f"{name}.cu"
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    kernel = Kernel(name, source=str(source), entry="scale", params=params, constants=("THREADS", "FACTOR"))
    return Specialisation(kernel, {"THREADS": 64, "FACTOR": factor})
