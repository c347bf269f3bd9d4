// Chains of m8n8k4 products: the tensor cores' rate with four chains a warp, their latency with one.
//
// in has 16 bytes a thread: two words of A, then two of B. A trip makes 32 products on CHAINS accumulators in turn.
// out[thread] = the sum of its accumulators; cycles[warp] = those of all trips.
#include "ptx/clock.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/stream.cuh"

constexpr int PRODUCTS = 32;
static_assert(PRODUCTS % CHAINS == 0, "whole turns");

extern "C" __global__ void __launch_bounds__(THREADS)
    card_tensor(float* out, long long* cycles, const uint4* in, int trips) {
    const uint4 words = load_16(in + threadIdx.x);
    const unsigned a[2] = {words.x, words.y};
    const unsigned b[2] = {words.z, words.w};
    float c[CHAINS][8] = {};
    const long long start = cycles_now();
#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
        for (int i = 0; i < PRODUCTS; ++i) mma_m8n8k4(c[i % CHAINS], a, b);
    }
    float sum = 0.0f;
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += c[chain][i];
    }
    const long long end = cycles_now();
    store_float(out + threadIdx.x, sum);
    if (threadIdx.x % 32 == 0) cycles[threadIdx.x / 32] = end - start;
}
