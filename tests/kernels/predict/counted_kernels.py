"""Small kernels whose cycles are counted by hand in the comments, compiled for the tests of the predicting model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from sm70_kernels.build.compiler import compile_specialisation
from sm70_kernels.predict.machine import cubin
from sm70_kernels.predict.prediction import Kernel, Prediction, predict_code
from sm70_kernels.registry import Kernel as Registered
from sm70_kernels.registry import Specialisation

if TYPE_CHECKING:
    from sm70_kernels.predict.launch import Launch

HEAD = 'extern "C" __global__ void __launch_bounds__(THREADS) k'

# One warp of each sub-core: 64 FFMA a trip on CHAINS independent accumulators.
FFMA = (
    HEAD
    + """(float* out, float a, float b, int n) {
    float c[CHAINS];
#pragma unroll
    for (int j = 0; j < CHAINS; ++j) c[j] = threadIdx.x + j;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int u = 0; u < 64 / CHAINS; ++u)
#pragma unroll
            for (int j = 0; j < CHAINS; ++j) c[j] = fmaf(c[j], a, b);
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < CHAINS; ++j) sum += c[j];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
"""
)

# 32 m8n8k4 a trip on CHAINS independent accumulators.
HMMA = (
    HEAD
    + """(float* out, const uint2* in, int n) {
    const uint2 a = in[threadIdx.x], b = in[threadIdx.x + THREADS];
    float c[CHAINS][8]{};
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int u = 0; u < 32 / CHAINS; ++u)
#pragma unroll
            for (int j = 0; j < CHAINS; ++j)
                asm volatile(
                    "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, "
                    "{%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
                    : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]), "+f"(c[j][4]), "+f"(c[j][5]),
                      "+f"(c[j][6]), "+f"(c[j][7])
                    : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < CHAINS; ++j)
#pragma unroll
        for (int e = 0; e < 8; ++e) sum += c[j][e];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
"""
)

# A chain of loads from shared memory, each giving the address of the next; 16 a trip.
CHASE = (
    HEAD
    + """(int* out, int n) {
    __shared__ int next[THREADS];
    next[threadIdx.x] = (threadIdx.x + 1) % THREADS * 4;
    __syncthreads();
    int at = threadIdx.x * 4;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#pragma unroll
        for (int u = 0; u < 16; ++u) at = *reinterpret_cast<const int*>(reinterpret_cast<const char*>(next) + at);
    }
    out[threadIdx.x] = at;
}
"""
)

# 32 independent loads a trip, neighbouring lanes STRIDE words apart: a conflict of as many ways, from 1 to 32.
BANKS = (
    HEAD
    + """(int* out, int n) {
    __shared__ int words[1024];
    for (int i = threadIdx.x; i < 1024; i += THREADS) words[i] = out[i];
    __syncthreads();
    const volatile int* from = words;
    int sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        int found[32];
#pragma unroll
        for (int u = 0; u < 32; ++u) found[u] = from[(threadIdx.x % 32 * STRIDE + u * 32) % 1024];
#pragma unroll
        for (int u = 0; u < 32; ++u) sum += found[u];
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}
"""
)

# Every thread copies 16 bytes a trip, the grid side by side.
COPY = (
    HEAD
    + """(uint4* out, const uint4* in, int count) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) out[i] = in[i];
}
"""
)


@cache
def compiled(text: str, params: str, threads: int, **constants: int) -> tuple[cubin.Code, Kernel]:
    """Return the code of a kernel `k` and what the model needs of it besides."""
    values = {"THREADS": threads, **constants}
    with TemporaryDirectory() as folder:
        source = Path(folder, "k.cu")
        source.write_text(text)
        spec = Specialisation(Registered("k", str(source), "k", params, tuple(values)), values)
        return cubin.read(compile_specialisation(spec).cubin, "k"), Kernel("k", params, threads)


def predicted(text: str, params: str, threads: int, launch: Launch, **constants: int) -> Prediction:
    """Return what the model says of a launch of such a kernel."""
    code, kernel = compiled(text, params, threads, **constants)
    return predict_code(code, launch, kernel)
