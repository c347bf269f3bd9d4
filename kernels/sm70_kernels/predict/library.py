"""FP16 products of cuBLAS, which is not our machine code: a roofline with the rates that others published.

Tiles, waves and the algorithm that cuBLAS picks are unknown here, so one share of the tensor cores' peak and one
bandwidth serve every shape, and shapes that suit it badly are predicted too fast. `constants.toml` has both rates with
sources and ranges.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sm70_kernels.predict.constants import Corner, constants

NAME = "cublas_fp16"

HALF = 2
"""Bytes of an FP16 number."""


@dataclass(frozen=True, slots=True)
class Product:
    """out[rows, n] = x[rows, k] · weight[n, k]ᵀ in FP16. Weights lie in DRAM, and what L2 cannot hold."""

    rows: int
    n: int
    k: int

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.rows * self.n * self.k

    @property
    def shape(self) -> str:
        """The sizes as text."""
        return f"M={self.rows} N={self.n} K={self.k}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call of the library would take. Predicted from bytes and products alone; `basis` says so.

    `us` includes the start of its kernel, `roofline_us` is as in Prediction: the bytes at the usable bandwidth or the
    products at the tensor cores' measured rate, whichever takes longer.
    """

    kernel: str
    shape: str
    us: float
    bound: Literal["dram", "tensor", "launch"]
    roofline_us: float
    roofline_share: float
    dram_bytes: int
    provenance: str = field(default="predicted", init=False)
    basis: str = field(default="roofline and a published rate", init=False)

    def record(self) -> dict[str, Any]:
        """Return the estimate as JSON-ready values, figures rounded."""
        rounded = {name: round(getattr(self, name), 3) for name in ("us", "roofline_us", "roofline_share")}
        return asdict(self) | rounded


def estimate(product: Product, corner: Corner = "expected") -> Estimate:
    """Return what the library is predicted to take for a product."""
    machine = constants(corner)
    moved = HALF * product.n * product.k
    moved += sum(size for size in _activations(product) if size > machine.l2_bytes)
    floor = machine.microseconds(product.products / machine.products_a_cycle)
    reading = moved / machine.stream_bandwidth / 1e3
    peak = machine.sms * machine.sub_cores * _PEAK_PRODUCTS
    multiplying = machine.microseconds(product.products / peak) / machine.gemm_share
    us = max(reading, multiplying) + machine.ramp
    roofline = max(moved / machine.dram_bandwidth / 1e3, floor)
    bound: Literal["dram", "tensor", "launch"] = "dram" if reading > multiplying else "tensor"
    if machine.ramp > 0.4 * us:
        bound = "launch"
    return Estimate(NAME, product.shape, us, bound, roofline, roofline / us, moved)


_PEAK_PRODUCTS = 128
"""Of a sub-core's tensor cores in a cycle: an m8n8k4 of 1024 every 8, which published shares of the peak refer to."""


def _activations(product: Product) -> tuple[int, int]:
    return HALF * product.rows * product.k, HALF * product.rows * product.n
