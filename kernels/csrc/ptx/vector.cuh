// A lane's share of a row as floats: 8 neighbours by 16-byte accesses, or 1 where a row is not a multiple of 8.
#pragma once
#include "ptx/half.cuh"
#include "ptx/memory.cuh"

template <int width>
struct Vector {
    static_assert(width == 8 || width == 1, "a lane reads 16 bytes of halves or one half");
    float at[width];
};

// The same share still as halves: half the registers while it waits for its use.
template <int width>
struct Packed {
    uint4 words;
};
template <>
struct Packed<1> {
    unsigned short half;
};

template <int width>
__device__ __forceinline__ Packed<width> load_packed(const unsigned short* row, int index) {
    if constexpr (width == 8) {
        return {load_16(row + index)};
    } else {
        return {load_2(row + index)};
    }
}

template <int width>
__device__ __forceinline__ Vector<width> unpack(const Packed<width>& packed) {
    Vector<width> value;
    if constexpr (width == 8) {
        const unsigned words[4] = {packed.words.x, packed.words.y, packed.words.z, packed.words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = half2_to_float2(words[i]);
            value.at[2 * i] = pair.x;
            value.at[2 * i + 1] = pair.y;
        }
    } else {
        value.at[0] = half_to_float(packed.half);
    }
    return value;
}

// The same halves again, if `zero` is 0 and the compiler cannot know it: it then unpacks them anew where they are used
// anew, and does not hold the floats in registers, which are twice as many, from one use to the other.
template <int width>
__device__ __forceinline__ Packed<width> anew(const Packed<width>& packed, unsigned zero) {
    if constexpr (width == 8) {
        const uint4& words = packed.words;
        return {make_uint4(words.x ^ zero, words.y ^ zero, words.z ^ zero, words.w ^ zero)};
    } else {
        return {static_cast<unsigned short>(packed.half ^ zero)};
    }
}

template <int width>
__device__ __forceinline__ Vector<width> load_halves(const unsigned short* row, int index) {
    return unpack<width>(load_packed<width>(row, index));
}

template <int width>
__device__ __forceinline__ void store_halves(unsigned short* row, int index, const Vector<width>& value) {
    if constexpr (width == 8) {
        store_16(row + index, make_uint4(float2_to_half2(value.at[0], value.at[1]), float2_to_half2(value.at[2], value.at[3]),
                                         float2_to_half2(value.at[4], value.at[5]), float2_to_half2(value.at[6], value.at[7])));
    } else {
        store_2(row + index, float_to_half(value.at[0]));
    }
}

template <int width>
__device__ __forceinline__ Vector<width> load_floats(const float* row, int index) {
    Vector<width> value;
    if constexpr (width == 8) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const uint4 raw = load_16(row + index + i);
            value.at[i] = __uint_as_float(raw.x);
            value.at[i + 1] = __uint_as_float(raw.y);
            value.at[i + 2] = __uint_as_float(raw.z);
            value.at[i + 3] = __uint_as_float(raw.w);
        }
    } else {
        value.at[0] = load_float(row + index);
    }
    return value;
}

template <int width>
__device__ __forceinline__ void store_floats(float* row, int index, const Vector<width>& value) {
    if constexpr (width == 8) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            store_16(row + index + i, make_uint4(__float_as_uint(value.at[i]), __float_as_uint(value.at[i + 1]),
                                                 __float_as_uint(value.at[i + 2]), __float_as_uint(value.at[i + 3])));
        }
    } else {
        store_float(row + index, value.at[0]);
    }
}
