// FP8 E5M2 to FP16: the byte is the upper half of the FP16 number, so this is exact for every code, infinities too.
#pragma once

// Bytes 0 and 2 of a word, as the low and the high half.
__device__ constexpr unsigned e5m2_even(unsigned word) { return word << 8 & 0xFF00FF00u; }

// Bytes 1 and 3 of a word, as the low and the high half.
__device__ constexpr unsigned e5m2_odd(unsigned word) { return word & 0xFF00FF00u; }
