// A chain of loads, each address of which hangs on what the load before it gave. One warp.
//
// SPACE 0: from L2, or from DRAM where `in` is not in L2; 1: from L1, once the first steps have filled it; 2: from shared
// memory, into which the first 4 KiB of `in` are copied. A lane reads word at / 4 + lane and goes on at (at + stride +
// word) & mask, in bytes; mask + 1 is a power of two, at most the size of `in` less 128 bytes, in shared memory 2048. With
// zeros in `in` the way is known, and all lanes go together. out[lane] = where it ended; cycles[0] = those of all steps.
#include "ptx/cached.cuh"
#include "ptx/clock.cuh"
#include "ptx/memory.cuh"
#include "ptx/stream.cuh"

static_assert(THREADS == 32, "one warp");

extern "C" __global__ void __launch_bounds__(THREADS)
    card_latency(unsigned* out, long long* cycles, const unsigned* in, int steps, unsigned stride, unsigned mask) {
    __shared__ unsigned held[SPACE == 2 ? 1024 : 1];
    if constexpr (SPACE == 2) {
        for (int i = threadIdx.x; i < 1024; i += THREADS) held[i] = load_4_l2(in + i);
        __syncthreads();
    }
    const unsigned lane = threadIdx.x;
    unsigned at = 0;
    const long long start = cycles_now();
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
        const unsigned index = at / 4 + lane;
        unsigned word;
        if constexpr (SPACE == 2) {
            word = *const_cast<const volatile unsigned*>(held + index);
        } else if constexpr (SPACE == 1) {
            word = load_4_l1(in + index);
        } else {
            word = load_4_l2(in + index);
        }
        at = (at + stride + word) & mask;
    }
    const long long end = cycles_now();
    store_4(out + lane, at);
    if (lane == 0) cycles[0] = end - start;
}
