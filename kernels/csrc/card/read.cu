// Reads memory once with LOADS 16-byte loads a lane in flight: bandwidth, and latency under load, by Little's law.
//
// in [rounds][LOADS][gridDim.x * THREADS] of 16 bytes; out[thread] is the sum of all words that it read, modulo 2^32.
#include "ptx/memory.cuh"
#include "ptx/stream.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) card_read(unsigned* out, const uint4* in, int rounds) {
    const int threads = gridDim.x * THREADS;
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    unsigned sum = 0;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        uint4 held[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            held[i] = make_uint4(0, 0, 0, 0);
            load_16_ahead(held[i], in + static_cast<long long>(round * LOADS + i) * threads + thread, true);
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) sum += held[i].x + held[i].y + held[i].z + held[i].w;
    }
    store_4(out + thread, sum);
}
