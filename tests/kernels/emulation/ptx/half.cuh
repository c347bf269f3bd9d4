// Stands in for csrc/ptx/half.cuh.
#pragma once
#include "device.hpp"

inline float half_to_float(unsigned short bits) { return static_cast<float>(same_bits<_Float16>(bits)); }
inline unsigned short float_to_half(float value) { return same_bits<unsigned short>(static_cast<_Float16>(value)); }
inline float2 half2_to_float2(unsigned pair) { return {half_to_float(pair & 0xFFFF), half_to_float(pair >> 16)}; }
inline unsigned float2_to_half2(float lo, float hi) {
    return float_to_half(lo) | static_cast<unsigned>(float_to_half(hi)) << 16;
}
