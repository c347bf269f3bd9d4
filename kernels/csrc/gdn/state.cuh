// One step of the delta rule on value columns of a state [HEAD values][HEAD keys] in FP32.
//
// LANES neighbouring lanes own a column, a row of HEAD keys in memory: lane `part` holds the keys 32 i + 4 part + e, so that
// a warp's access is 128 contiguous bytes of each of its columns. Which lane adds what is the same whatever a block's
// width is: a column's bits do not hang on the batch.
#pragma once
#include "gdn/gates.cuh"
#include "norm/reduce.cuh"
#include "ptx/memory.cuh"

constexpr int HEAD = 128;
constexpr int LANES = 8;
constexpr int ELEMENTS = HEAD / LANES;
constexpr float NORM_EPS = 1e-6f;
constexpr float QUERY_SCALE = 0.08838834764831845f;  // HEAD ** -0.5

// A lane's share of HEAD keys.
struct Share {
    float at[ELEMENTS];
};

__device__ __forceinline__ Share load_state(const float* column, int part) {
    Share share;
#pragma unroll
    for (int i = 0; i < ELEMENTS / 4; ++i) {
        const uint4 raw = load_16_here(column + 32 * i + 4 * part);
        share.at[4 * i] = __uint_as_float(raw.x);
        share.at[4 * i + 1] = __uint_as_float(raw.y);
        share.at[4 * i + 2] = __uint_as_float(raw.z);
        share.at[4 * i + 3] = __uint_as_float(raw.w);
    }
    return share;
}

__device__ __forceinline__ void store_state(float* column, int part, const Share& share) {
#pragma unroll
    for (int i = 0; i < ELEMENTS / 4; ++i) {
        store_16(column + 32 * i + 4 * part,
                 make_uint4(__float_as_uint(share.at[4 * i]), __float_as_uint(share.at[4 * i + 1]),
                            __float_as_uint(share.at[4 * i + 2]), __float_as_uint(share.at[4 * i + 3])));
    }
}

// From shared memory, HEAD floats.
__device__ __forceinline__ Share load_shared(const float4* head, int part) {
    Share share;
#pragma unroll
    for (int i = 0; i < ELEMENTS / 4; ++i) {
        const float4 four = head[8 * i + part];
        share.at[4 * i] = four.x, share.at[4 * i + 1] = four.y, share.at[4 * i + 2] = four.z, share.at[4 * i + 3] = four.w;
    }
    return share;
}

__device__ __forceinline__ float dot(const Share& one, const Share& other) {
    float even = one.at[0] * other.at[0], odd = one.at[1] * other.at[1];
#pragma unroll
    for (int e = 2; e < ELEMENTS; e += 2) {
        even = fmaf(one.at[e], other.at[e], even);
        odd = fmaf(one.at[e + 1], other.at[e + 1], odd);
    }
    return even + odd;
}

// state <- decay * state + write * key^T of one column.
__device__ __forceinline__ void advance(Share& state, const Share& key, float decay, float write) {
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) state.at[e] = fmaf(write, key.at[e], decay * state.at[e]);
}

// What a token did to a column, and the column's result.
struct Step {
    float write, result;
};

// One token's step of a column; `meeting` is k . q. The new state's product with q is had without reading it again.
__device__ __forceinline__ Step step(Share& state, const Share& key, const Share& query, Gates open, float value,
                                     float meeting) {
    const float known = sum_lanes<LANES>(dot(state, key)), read = sum_lanes<LANES>(dot(state, query));
    const float write = open.beta * fmaf(-open.decay, known, value);
    advance(state, key, open.decay, write);
    return {write, fmaf(open.decay, read, write * meeting)};
}

// Norms a head of which each lane of a warp holds four elements, times `scale`.
__device__ __forceinline__ float4 normed(float4 x, float scale) {
    const float squares = sum_lanes<32>(fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w))));
    const float factor = rsqrtf(squares + NORM_EPS) * scale;
    return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}
