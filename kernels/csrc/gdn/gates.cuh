// The two gates of a value head: how much of its state stays, and how much of a token is written.
#pragma once
#include "ptx/half.cuh"
#include "ptx/memory.cuh"

struct Gates {
    float decay;  // exp(-exp(A_log) * softplus(a + dt_bias))
    float beta;   // sigmoid(b)
};

// The exact functions and no approximations: an error of a decay near 1 grows with the tokens of a sequence.
__device__ __forceinline__ Gates gates(float a, float b, float a_log, float dt_bias) {
    constexpr float LINEAR_FROM = 20.0f;
    const float x = a + dt_bias;
    const float softplus = x > LINEAR_FROM ? x : log1pf(expf(x));
    return {expf(-expf(a_log) * softplus), __fdividef(1.0f, 1.0f + expf(-b))};
}

// Of a head, from its FP16 `a` and `b` of a token; dt_bias is FP32 where `wide_bias`, else FP16.
__device__ __forceinline__ Gates load_gates(const unsigned short* a, const unsigned short* b, const float* a_log,
                                            const void* dt_bias, int wide_bias, int head) {
    const float bias = wide_bias ? load_float(static_cast<const float*>(dt_bias) + head)
                                 : half_to_float(load_2(static_cast<const unsigned short*>(dt_bias) + head));
    return gates(half_to_float(load_2(a + head)), half_to_float(load_2(b + head)), load_float(a_log + head), bias);
}
