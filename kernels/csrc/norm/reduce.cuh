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

// Sums over a block of threads threads, one for each row, behind one barrier; every thread gets them. `partial` has room
// for one float a row and warp.
template <int threads, int rows>
__device__ __forceinline__ void sum_block(float (&values)[rows], float (&partial)[rows][threads / 32]) {
    static_assert(threads % 32 == 0 && threads <= 1024, "a block is whole warps");
#pragma unroll
    for (int r = 0; r < rows; ++r) values[r] = sum_lanes<32>(values[r]);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
        if (threadIdx.x % 32 == 0) partial[r][threadIdx.x / 32] = values[r];
    }
    __syncthreads();
    // Every thread reads the same word at a time (a broadcast), so no second exchange and no second barrier is needed.
#pragma unroll
    for (int r = 0; r < rows; ++r) {
        values[r] = 0.0f;
#pragma unroll
        for (int warp = 0; warp < threads / 32; ++warp) values[r] += partial[r][warp];
    }
}
