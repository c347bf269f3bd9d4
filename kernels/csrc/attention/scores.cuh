// Scores of a warp as m8n8k4 leaves them: what lanes of the same rows, and of the two halves of the head, tell one another.
#pragma once

constexpr unsigned ALL = 0xFFFFFFFFu;
constexpr float LOG2_E = 1.44269504f;

__device__ __forceinline__ float no_number() { return __uint_as_float(0x7FC00000u); }
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

// The greatest, and the sum, over the eight lanes that have the same rows.
__device__ __forceinline__ float greatest_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL, value, 2));
    value = fmaxf(value, __shfl_xor_sync(ALL, value, 4));
    return fmaxf(value, __shfl_xor_sync(ALL, value, 8));
}
__device__ __forceinline__ float sum_of_row(float value) {
    value += __shfl_xor_sync(ALL, value, 2);
    value += __shfl_xor_sync(ALL, value, 4);
    return value + __shfl_xor_sync(ALL, value, 8);
}

// A lane's four scores of a row tile: two rows of two neighbouring tokens, the first of which is `first_token`. The halves
// of the head, which lanes 8 apart have, are added; each of the two keeps four of the eight tokens.
__device__ __forceinline__ int first_token(int lane) { return (lane & 4) * 2 + (lane & 8) / 2 + (lane & 2); }
__device__ __forceinline__ void join(float (&scores)[4], const float (&c)[8], int lane, float factor) {
    const bool upper = lane & 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(ALL, upper ? c[i] : c[i + 4], 8);
        scores[i] = ((upper ? c[i + 4] : c[i]) + other) * factor;
    }
}
