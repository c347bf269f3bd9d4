// Sums over the K parts of a tile, always paired in the same order: neighbours first, then pairs of them. Any power of two
// of parts gives the same bits however it is spread over warps and blocks.
//
// Accumulators travel in pieces of four (16 bytes): piece i of a lane lies 32 pieces after piece i - 1, so a warp's access
// is 512 contiguous bytes. A slot is what one warp has.
#pragma once
#include "ptx/stream.cuh"

__device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The sum of one piece over `parts` slots that lie `step` pieces apart, in memory that this block wrote.
template <int parts>
__device__ __forceinline__ float4 sum_of_block(const float4* first, int step) {
    static_assert((parts & (parts - 1)) == 0, "pairs of pairs");
    if constexpr (parts == 1) {
        return *first;
    } else {
        return sum_of(sum_of_block<parts / 2>(first, step), sum_of_block<parts / 2>(first + parts / 2 * step, step));
    }
}

// As sum_of_block, in memory that other blocks wrote.
template <int parts>
__device__ __forceinline__ float4 sum_of_grid(const float4* first, int step) {
    static_assert((parts & (parts - 1)) == 0, "pairs of pairs");
    if constexpr (parts == 1) {
        return load_16_of_grid(first);
    } else {
        return sum_of(sum_of_grid<parts / 2>(first, step), sum_of_grid<parts / 2>(first + parts / 2 * step, step));
    }
}

// True in the last of `blocks` blocks that come here, for all its threads; what the others wrote before is then seen.
// The counter is zero again afterwards, ready for the next launch, also of a replayed graph.
template <int blocks>
__device__ __forceinline__ bool last_of(int* counter) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1) == blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}
