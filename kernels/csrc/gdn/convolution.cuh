// The causal convolution of four neighbouring channels in one lane: TAPS taps a channel, then SiLU.
#pragma once
#include "ptx/half.cuh"
#include "ptx/memory.cuh"
#include "ptx/quad.cuh"

constexpr int TAPS = 4;
constexpr int CHANNELS_A_LANE = 4;

// Weights [channel][tap] of four channels, as halves.
struct Taps {
    uint4 words[2];
};

__device__ __forceinline__ Taps load_taps(const unsigned short* weight, int channel) {
    const unsigned short* const own = weight + channel * TAPS;
    return {{load_16(own), load_16(own + 8)}};
}

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// `window` has TAPS inputs of four channels each, the oldest first. The products are added in that order.
__device__ __forceinline__ float4 convolve(const uint2 (&window)[TAPS], const Taps& taps) {
    const unsigned words[8] = {taps.words[0].x, taps.words[0].y, taps.words[0].z, taps.words[0].w,
                               taps.words[1].x, taps.words[1].y, taps.words[1].z, taps.words[1].w};
    float inputs[TAPS][CHANNELS_A_LANE], sums[CHANNELS_A_LANE];
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        const float2 low = half2_to_float2(window[tap].x), high = half2_to_float2(window[tap].y);
        inputs[tap][0] = low.x, inputs[tap][1] = low.y, inputs[tap][2] = high.x, inputs[tap][3] = high.y;
    }
#pragma unroll
    for (int c = 0; c < CHANNELS_A_LANE; ++c) {
        const float2 early = half2_to_float2(words[2 * c]), late = half2_to_float2(words[2 * c + 1]);
        sums[c] = inputs[0][c] * early.x;
        sums[c] = fmaf(inputs[1][c], early.y, sums[c]);
        sums[c] = fmaf(inputs[2][c], late.x, sums[c]);
        sums[c] = silu(fmaf(inputs[3][c], late.y, sums[c]));
    }
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
}
