// Independent loads that hit, as fast as they go: wavefronts of 128 bytes of shared memory (SPACE 2) and of L1 (SPACE 1).
//
// in has 4096 words. In a trip a thread reads 16 times: one word of shared memory, neighbours side by side, or 16 bytes of
// L1, from 512 words further in three of four trips; the first four fill L1. out[thread] = the sum of all words read, modulo
// 2^32; cycles[warp] = those of all trips.
#include "ptx/cached.cuh"
#include "ptx/clock.cuh"
#include "ptx/stream.cuh"

constexpr int READS = 16;

extern "C" __global__ void __launch_bounds__(THREADS)
    card_rate(unsigned* out, long long* cycles, const unsigned* in, int trips) {
    __shared__ unsigned held[SPACE == 2 ? 4096 : 1];
    if constexpr (SPACE == 2) {
        for (int i = threadIdx.x; i < 4096; i += THREADS) held[i] = load_4_l2(in + i);
    }
    const int lane = threadIdx.x % 32;
    unsigned sum = 0;
    __syncthreads();
    const long long start = cycles_now();
#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
        uint4 words[READS];
        // Loads of read-only data that does not change from trip to trip would be done once.
        const unsigned* from = in + trip % 4 * 512;
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            if constexpr (SPACE == 2) {
                words[i] = make_uint4(*const_cast<const volatile unsigned*>(held + i * 32 + lane), 0, 0, 0);
            } else {
                words[i] = load_16_l1(from + (i * 32 + lane) * 4);
            }
        }
#pragma unroll
        for (int i = 0; i < READS; ++i) sum += words[i].x + words[i].y + words[i].z + words[i].w;
    }
    const long long end = cycles_now();
    store_4(out + threadIdx.x, sum);
    if (lane == 0) cycles[threadIdx.x / 32] = end - start;
}
