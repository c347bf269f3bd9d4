"""NVRTC: good kernels compile the same each time, and bad ones are refused in one line that says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels.build import compiler
from sm70_kernels.build.compiler import (
    Resources,
    compile_specialisation,
    compiler_version,
    first_warning,
    parameter_sizes,
    parse_log,
)
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import Specialisation
from tests.kernels.kernel_sources import SCALE, scale

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs("engine")

LOG = """nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_70'
ptxas info    : Function properties for k
ptxas         .     48 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 256 bytes smem, 380 bytes cmem[0]
"""


def test_it_is_the_compiler_that_knows_volta() -> None:
    assert compiler_version() == "NVRTC 12.8.93"


def test_a_kernel_becomes_cubin_and_ptx_the_same_each_time(tmp_path: Path) -> None:
    first, second = (compile_specialisation(scale(tmp_path)) for _ in range(2))
    assert first == second
    assert first.cubin.startswith(b"\x7fELF")
    assert b".target sm_70" in first.ptx
    assert not first.ptx.endswith(b"\0")
    assert first.resources.registers <= 16
    assert first.resources.spill_stores == first.resources.local_memory == 0


def test_figures_are_read_from_the_log() -> None:
    assert parse_log(LOG) == Resources(
        registers=48, static_shared=256, local_memory=48, spill_stores=12, spill_loads=16
    )
    assert first_warning(LOG) == ""
    assert first_warning(LOG + "k.cu(3): warning #177-D: unused\n") == "k.cu(3): warning #177-D: unused"


def test_parameters_are_read_from_ptx() -> None:
    ptx = b".visible .entry k(\n.param .u64 k_param_0,\n.param .f32 k_param_1,\n.param .align 4 .b8 k_param_2[12]\n)\n{"
    assert parameter_sizes(ptx, "k") == [8, 4, 12]
    assert parameter_sizes(ptx, "other") == []


BODY = "out[i] *= FACTOR;"
LOCAL = "{ float many[99]; for (int j = 0; j < count; ++j) many[j * j % 99] = out[j]; out[i] = many[count % 99]; }"


@pytest.mark.parametrize(
    ("text", "params", "says"),
    [
        (SCALE.replace(BODY, "out[i] *= MISSING;"), "Pi", r'does not compile: .*scale.cu\(4\): error: .*"MISSING"'),
        (SCALE.replace(BODY, "int unused;"), "Pi", "compiles with a warning: .*never referenced"),
        (SCALE.replace(BODY, LOCAL), "Pi", r"keeps \d+ bytes in local memory"),
        (SCALE, "Pq", r"takes parameters of \[8, 4\] bytes where the registry says \[8, 8\] \(Pq\)"),
        (SCALE.replace("scale(", "other("), "Pi", r"takes parameters of \[\] bytes"),
    ],
    ids=["error", "warning", "local memory", "signature", "entry"],
)
def test_a_bad_kernel_is_refused_in_one_line(tmp_path: Path, text: str, params: str, says: str) -> None:
    with pytest.raises(KernelError, match=says) as caught:
        compile_specialisation(scale(tmp_path, text=text, params=params))
    assert "\n" not in str(caught.value)
    assert caught.value.reason == "operator_missing:scale"


def test_a_kernel_that_spills_is_refused(tmp_path: Path) -> None:
    # 128 live floats cannot fit the 64 registers that 1024 threads leave to each.
    text = """
    extern "C" __global__ void __launch_bounds__(1024) scale(float* out, int count) {
        float held[128];
    #pragma unroll
        for (int j = 0; j < 128; ++j) held[j] = out[threadIdx.x + j * count];
        __syncthreads();
    #pragma unroll
        for (int j = 0; j < 128; ++j) out[threadIdx.x + j * count] = held[j] * held[127 - j] * FACTOR;
    }
    """
    with pytest.raises(KernelError, match=r"spills \d+ bytes, and keeps \d+ bytes in local memory; change .*scale.cu"):
        compile_specialisation(scale(tmp_path, text=text))


def test_a_compiler_that_no_longer_knows_volta_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("nvrtc: error: invalid value for --gpu-architecture (-arch)")

    monkeypatch.setattr(compiler, "_run", refuse)
    compiler_version.cache_clear()
    try:
        with pytest.raises(
            KernelError, match=r"cannot compile for SM70 .*nvidia-cuda-nvrtc-cu12==12.8.93 can"
        ) as caught:
            compiler_version()
        assert caught.value.reason == "compiler_missing"
    finally:
        compiler_version.cache_clear()


def test_more_shared_memory_than_volta_has_is_refused_static_counted_too(tmp_path: Path) -> None:
    text = SCALE.replace(BODY, "{ __shared__ float one; if (i == 0) one = out[9]; __syncthreads(); out[i] *= one; }")
    small = scale(tmp_path, text=text)
    compile_specialisation(Specialisation(small.kernel, small.constants, shared_bytes=98304 - 4))
    says = "wants 98308 bytes of shared memory, static and dynamic, where SM70 has 98304; change"
    with pytest.raises(KernelError, match=says):
        compile_specialisation(Specialisation(small.kernel, small.constants, shared_bytes=98304))
