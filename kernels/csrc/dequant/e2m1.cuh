// FP4 E2M1 to FP16 by shifting: the two exponent bits land on FP16's low two, so each half is the value times 2^-14.
//
//     nibble   s ee m              half   s 000ee m000000000     bias 1 against 15: 2^(1-15) = 2^-14
//
// Exact for all sixteen codes; plus and minus 0.5 become FP16 subnormals. Multiply by E2M1_FOLD once, in the scale.
#pragma once

constexpr float E2M1_FOLD = 16384.0f;

// Nibbles `index` and `index + 4` of a word of eight (0 is the lowest), as the low and the high half.
template <int index>
__device__ constexpr unsigned e2m1_pair(unsigned word) {
    static_assert(0 <= index && index < 4, "each half of a word has four nibbles");
    const unsigned top = word << (12 - 4 * index);
    return (top & 0x80008000u) | (top & 0x70007000u) >> 3;
}
