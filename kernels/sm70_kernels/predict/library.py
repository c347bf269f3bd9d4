"""What libraries do in a step, which is not our machine code: rooflines with the rates that others published.

Tiles, waves and the algorithm that cuBLAS picks are unknown here, so one share of the tensor cores' peak and one
bandwidth serve every shape, and shapes that suit it badly are predicted too fast. `constants.toml` has both rates with
sources and ranges.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sm70_kernels.predict.constants import Constants, Corner, constants

NAME = "cublas_fp16"

ELEMENTWISE = "torch_elementwise"

HALF = 2
SINGLE = 4
"""Bytes of an FP16 and of an FP32 number."""


@dataclass(frozen=True, slots=True)
class Product:
    """out[rows, n] = x[rows, k] · weight[n, k]ᵀ in FP16. Weights lie in DRAM, and what L2 cannot hold.

    `out_bytes` are those of an element of `out`: 4 where sums are kept in FP32.
    """

    rows: int
    n: int
    k: int
    out_bytes: int = HALF

    @property
    def name(self) -> str:
        """The kernel's."""
        return NAME

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.rows * self.n * self.k

    @property
    def shape(self) -> str:
        """The sizes as text."""
        return f"M={self.rows} N={self.n} K={self.k}"


@dataclass(frozen=True, slots=True)
class Pass:
    """A torch operator that goes once over [rows, n] elements and moves so many bytes of each."""

    rows: int
    n: int
    bytes_each: int

    @property
    def name(self) -> str:
        """The kernel's."""
        return ELEMENTWISE

    @property
    def products(self) -> int:
        """Multiplications of the tensor cores: none."""
        return 0

    @property
    def shape(self) -> str:
        """The sizes as text."""
        return f"M={self.rows} N={self.n} {self.bytes_each} B each"


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


def estimate(product: Product | Pass, corner: Corner = "expected") -> Estimate:
    """Return what the library is predicted to take for a product, or for a pass over elements."""
    machine = constants(corner)
    if isinstance(product, Pass):
        return _pass(product, machine)
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


def _pass(each: Pass, machine: Constants) -> Estimate:
    """Bytes at the usable bandwidth of DRAM, or of L2 where all of them fit there, and the start of a kernel."""
    size = each.rows * each.n * each.bytes_each
    cold = size > machine.l2_bytes
    floor = size / (machine.dram_bandwidth if cold else machine.l2_bandwidth) / 1e3
    us = floor + machine.ramp
    bound: Literal["dram", "launch"] = "launch" if machine.ramp > 0.4 * us else "dram"
    return Estimate(each.name, each.shape, us, bound, floor, floor / us, size if cold else 0)


_PEAK_PRODUCTS = 128
"""Of a sub-core's tensor cores in a cycle: an m8n8k4 of 1024 every 8, which published shares of the peak refer to."""


def _activations(product: Product) -> tuple[int, int]:
    return HALF * product.rows * product.k, product.out_bytes * product.rows * product.n
