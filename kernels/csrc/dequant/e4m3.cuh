// FP8 E4M3 to FP16 by shifting: the four exponent bits land on FP16's low four, so each half is the value times 2^-8.
//
//     byte   s eeee mmm            half   s 0eeee mmm0000000     bias 7 against 15: 2^(7-15) = 2^-8
//
// Exact for every code that is a number, subnormals included (they become FP16 subnormals, which the tensor core takes
// at full value: the self-test checks that on the card). Multiply by E4M3_FOLD once, in a scale that is there anyway.
// The code 0x7F, not a number, would come out as 480: refuse it when weights are packed.
#pragma once

constexpr float E4M3_FOLD = 256.0f;

// Bytes 0 and 2 of a word, as the low and the high half.
__device__ constexpr unsigned e4m3_even(unsigned word) { return (word << 8 & 0x80008000u) | (word << 7 & 0x3F803F80u); }

// Bytes 1 and 3 of a word, as the low and the high half.
__device__ constexpr unsigned e4m3_odd(unsigned word) { return (word & 0x80008000u) | (word >> 1 & 0x3F803F80u); }
