// FP16 as bits: NVRTC brings no half type, and none is needed to convert and to multiply.
#pragma once

__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rounds to nearest even; too large becomes infinity, as torch does.
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float2 half2_to_float2(unsigned pair) {
    float2 value;
    asm("{.reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
        : "=f"(value.x), "=f"(value.y)
        : "r"(pair));
    return value;
}

// `lo` lands in bits 0 to 15. The one-instruction form of this conversion came only with SM80.
__device__ __forceinline__ unsigned float2_to_half2(float lo, float hi) {
    unsigned pair;
    asm("{.reg .b16 lo, hi; cvt.rn.f16.f32 lo, %1; cvt.rn.f16.f32 hi, %2; mov.b32 %0, {lo, hi};}"
        : "=r"(pair)
        : "f"(lo), "f"(hi));
    return pair;
}

__device__ __forceinline__ unsigned half2_multiply(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

__device__ __forceinline__ unsigned half2_multiply_add(unsigned a, unsigned b, unsigned c) {
    unsigned sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}
