// Sums rounds of numbers that neighbouring warps hand to each other through two buffers in shared memory: the order of
// stores, loads and waits of dense/activations.cuh with nothing around it, right by inspection. It is the control of the
// sanitizer: what racecheck says of this kernel it would say of any that waits at named barriers.
//
// Two parts of two warps, each with its own buffers. NAMED 1: each part waits at a barrier of its own, and the second does
// three rounds less, as the K parts of a layer may; NAMED 0: all wait at the block's barrier, so all do the same rounds. In a round a part reads one buffer and writes the other, then waits: so what it reads was
// written before the last wait, and what it overwrites was read before that wait too.
//
// After the rounds the parts add up as dense/w8a16.cu's do: all wait at the block's barrier, each writes its sum where the
// buffers were, all wait again, and each reads the other part's.
//
// x [rounds][THREADS], out [THREADS]: out[i] is s[i] + s[i ^ 64], where s[i] is the sum over the rounds of i's part of
// (round + 1) * x[round][the same lane of the other warp of i's part]. rounds is at least 4.
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"

namespace {

constexpr int PART = 64;
static_assert(THREADS == 2 * PART, "two parts of two warps");

__device__ __forceinline__ void wait(int part) {
    if constexpr (NAMED) {
        synchronise(1 + part, PART);
    } else {
        __syncthreads();
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) barrier_control(float* out, const float* x, int rounds) {
    __shared__ float buffers[2][2][PART];
    const int part = threadIdx.x / PART;
    const int mine = threadIdx.x % PART;
    const int other = mine ^ 32;
    if (NAMED) rounds -= 3 * part;
    buffers[part][0][mine] = load_float(x + threadIdx.x);
    wait(part);
    float sum = 0.0f;
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const int buffer = round % 2;
        if (round + 1 < rounds) buffers[part][buffer ^ 1][mine] = load_float(x + (round + 1) * THREADS + threadIdx.x);
        sum += static_cast<float>(round + 1) * buffers[part][buffer][other];
        wait(part);
    }
    __syncthreads();
    float* sums = buffers[0][0];
    sums[threadIdx.x] = sum;
    __syncthreads();
    store_float(out + threadIdx.x, sum + sums[threadIdx.x ^ PART]);
}
