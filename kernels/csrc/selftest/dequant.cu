// Proof of the dequantisation identities: of the shifts over every code while this file compiles, and on the card of
// what the tensor core makes of the results, subnormals included.
//
// One warp. The tensor core multiplies by one and by zero only, so each output is a dequantised code, exact or wrong.
// out: 3 formats of 256 floats (E4M3 and E5M2 by code; E2M1 by a byte's low nibble), scaled by the format's fold.
#include "dequant/e2m1.cuh"
#include "dequant/e4m3.cuh"
#include "dequant/e5m2.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/memory.cuh"

// An FP16 number in units of 2^-24, its smallest; infinities and what is not a number are not given to this.
__device__ constexpr long long half_units(unsigned half) {
    const long long exponent = half >> 10 & 31;
    const long long mantissa = half & 1023;
    const long long units = exponent ? (1024 + mantissa) << (exponent - 1) : mantissa;
    return half & 0x8000 ? -units : units;
}

// A small float in units of 2^-unit by its definition: sign, exponent, mantissa, a bias, subnormals at exponent 0.
__device__ constexpr long long small_units(unsigned code, int exponent_bits, int mantissa_bits, int bias, int unit) {
    const long long exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const long long mantissa = code & ((1 << mantissa_bits) - 1);
    const long long whole = exponent ? (1 << mantissa_bits) + mantissa : mantissa;
    const long long units = whole << ((exponent ? exponent : 1) - bias - mantissa_bits + unit);
    return code >> (exponent_bits + mantissa_bits) & 1 ? -units : units;
}

__device__ constexpr bool e4m3_exact() {
    for (unsigned code = 0; code < 256; ++code) {
        if ((code & 0x7F) == 0x7F) continue;  // not a number
        const unsigned even = e4m3_even(code | (code ^ 0xFF) << 8 | code << 16);
        const unsigned odd = e4m3_odd((code ^ 0xFF) | code << 8 | code << 24);
        // The half is the value times 2^-8, so its units of 2^-24 are the value's units of 2^-16.
        const long long wanted = small_units(code, 4, 3, 7, 16);
        if (half_units(even & 0xFFFF) != wanted || half_units(even >> 16) != wanted) return false;
        if (half_units(odd & 0xFFFF) != wanted || half_units(odd >> 16) != wanted) return false;
    }
    return true;
}
static_assert(e4m3_exact(), "E4M3 to FP16");

__device__ constexpr bool e5m2_exact() {
    for (unsigned code = 0; code < 256; ++code) {
        if ((code & 0x7C) == 0x7C) continue;  // infinities and what is not a number keep their bits
        const unsigned even = e5m2_even(code | (code ^ 0xFF) << 8 | code << 16);
        const unsigned odd = e5m2_odd((code ^ 0xFF) | code << 8 | code << 24);
        const long long wanted = small_units(code, 5, 2, 15, 24);
        if (half_units(even & 0xFFFF) != wanted || half_units(even >> 16) != wanted) return false;
        if (half_units(odd & 0xFFFF) != wanted || half_units(odd >> 16) != wanted) return false;
    }
    return true;
}
static_assert(e5m2_exact(), "E5M2 to FP16");

template <int index>
__device__ constexpr bool e2m1_exact() {
    for (unsigned code = 0; code < 16; ++code) {
        const unsigned others = 0xFFFFFFFFu ^ (0x000F000Fu << 4 * index);
        const unsigned pair = e2m1_pair<index>(others | code << 4 * index | code << (16 + 4 * index));
        // The half is the value times 2^-14.
        const long long wanted = small_units(code, 2, 1, 1, 10);
        if (half_units(pair & 0xFFFF) != wanted || half_units(pair >> 16) != wanted) return false;
    }
    return true;
}
static_assert(e2m1_exact<0>() && e2m1_exact<1>() && e2m1_exact<2>() && e2m1_exact<3>(), "E2M1 to FP16");

// Passes eight codes a quad-pair column through C = 1 * B: k = 0..3 are the four codes from `first` on.
__device__ __forceinline__ void through_tensor_core(float* out, int first, const unsigned (&b)[2], float fold) {
    const int lane = threadIdx.x;
    const int row = m8n8k4::a_row(lane);
    constexpr unsigned ONE = 0x3C00;
    const unsigned a[2] = {row == 0 ? ONE : row == 1 ? ONE << 16 : 0, row == 2 ? ONE : row == 3 ? ONE << 16 : 0};
    float c[8] = {};
    mma_m8n8k4(c, a, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int k = m8n8k4::c_row(lane, i);
        const int column = m8n8k4::quad_pair(lane) * 8 + m8n8k4::c_column(lane, i);
        if (k < 4) store_float(out + first + column * 4 + k, c[i] * fold);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) dequant_codes(float* out) {
    static_assert(THREADS == 32, "one warp");
    const int lane = threadIdx.x;
    const unsigned column = m8n8k4::quad_pair(lane) * 8 + m8n8k4::b_column(lane);
#pragma unroll
    for (unsigned first = 0; first < 256; first += 128) {
        const unsigned code = first + column * 4;
        // Bytes 0 and 1 are k = 0 and 2, bytes 2 and 3 are k = 1 and 3: even bytes give register 0, odd ones register 1.
        const unsigned word = code | (code + 2) << 8 | (code + 1) << 16 | (code + 3) << 24;
        const unsigned e4m3[2] = {e4m3_even(word), e4m3_odd(word)};
        const unsigned e5m2[2] = {e5m2_even(word), e5m2_odd(word)};
        const unsigned e2m1[2] = {e2m1_pair<0>(word), e2m1_pair<2>(word)};
        through_tensor_core(out, first, e4m3, E4M3_FOLD);
        through_tensor_core(out + 256, first, e5m2, 1.0f);
        through_tensor_core(out + 512, first, e2m1, E2M1_FOLD);
    }
}
