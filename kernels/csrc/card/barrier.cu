// Rounds of the block's barrier with next to nothing between them.
//
// out[thread] = rounds, as the thread before it wrote them; cycles[warp] = those of all rounds.
#include "ptx/clock.cuh"
#include "ptx/stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) card_barrier(unsigned* out, long long* cycles, int rounds) {
    __shared__ unsigned arrived[THREADS];
    arrived[threadIdx.x] = rounds;
    __syncthreads();
    const long long start = cycles_now();
#pragma unroll 4
    for (int round = 0; round < rounds; ++round) __syncthreads();
    const long long end = cycles_now();
    store_4(out + threadIdx.x, arrived[(threadIdx.x + THREADS - 1) % THREADS]);
    if (threadIdx.x % 32 == 0) cycles[threadIdx.x / 32] = end - start;
}
