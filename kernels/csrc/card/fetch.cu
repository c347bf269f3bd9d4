// A loop of PAIRS pairs of an FP32 and an integer instruction, on pipes of their own: 32 bytes of code a pair, so that a
// long loop asks for code as fast as a sub-core issues.
//
// Four x and four y start from `thread`; pair i does x[i % 4] = x[i % 4] * a + b and y[i % 4] = 2 * y[i % 4] + odd.
// out[thread] = the sum of all x and of the low 8 bits of all y; cycles[warp] = those of all trips.
#include "ptx/clock.cuh"
#include "ptx/memory.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    card_fetch(float* out, long long* cycles, float a, float b, unsigned odd, int trips) {
    float x[4];
    unsigned y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[i] = static_cast<float>(threadIdx.x);
        y[i] = threadIdx.x;
    }
    const long long start = cycles_now();
#pragma unroll 1
    for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            x[i % 4] = fmaf(x[i % 4], a, b);
            y[i % 4] = (y[i % 4] << 1) + odd;
        }
    }
    const long long end = cycles_now();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += x[i] + static_cast<float>(y[i] & 255);
    store_float(out + threadIdx.x, sum);
    if (threadIdx.x % 32 == 0) cycles[threadIdx.x / 32] = end - start;
}
