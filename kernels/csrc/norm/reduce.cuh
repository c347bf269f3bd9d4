// Sums over lanes and over a block, always in the same order: a row's result is the same whatever runs beside it.
#pragma once

// Sum over each aligned group of lanes lanes (a power of two); every lane gets it.
template <int lanes>
__device__ __forceinline__ float sum_lanes(float value) {
    static_assert((lanes & (lanes - 1)) == 0 && lanes <= 32, "the exchange pairs lanes by one bit at a time");
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
    }
    return value;
}

// Sum over a block of threads threads; every thread gets it. `partial` has room for one float a warp.
template <int threads>
__device__ __forceinline__ float sum_block(float value, float* partial) {
    static_assert(threads % 32 == 0 && threads <= 1024, "a block is whole warps");
    value = sum_lanes<32>(value);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    // Every thread reads the same word at a time (a broadcast), so no second exchange and no second barrier is needed.
#pragma unroll
    for (int warp = 0; warp < threads / 32; ++warp) sum += partial[warp];
    return sum;
}
