// How keys and values lie in a page of the KV cache. sm70_kernels/attention/pack.py is its mirror in Python.
//
// A page's keys, and its values, are [KV head][tile of 16 tokens][tile's bytes]. A tile is made of steps of 512 bytes, one
// 16-byte load of each lane, which are B fragments of m8n8k4 as they come; `column` is m8n8k4::b_column(lane):
//
//     keys    step j    lane holds its token 8 * (quad-pair & 1) + column, head elements from
//                       (2 * j + (quad-pair >> 1)) * RUN on, RUN = 16 codes of 8 bits or 8 halves
//     values  slice s   lane holds its head element 32 * s + 8 * quad-pair + column, of all 16 tokens;
//                       halves take two steps a slice, tokens 0 to 7 and 8 to 15
//
// So the four products of a warp are two of eight tokens by two parts of the head for keys, and four of eight head
// elements for values. Each four codes of 8 bits stand in the order 0, 2, 1, 3: the even bytes of a word are one register
// of a fragment and the odd bytes the other.
#pragma once
#include "dequant/e4m3.cuh"
#include "dequant/e5m2.cuh"

namespace kv {

constexpr int AUTO = 0, E4M3 = 1, E5M2 = 2;  // halves, and the codes of 8 bits
constexpr int TILE = 16;                     // tokens
constexpr int STEP = 32;                     // pieces of 16 bytes

// Bytes of an element, pieces of a tile, and elements in a piece.
__device__ constexpr int bytes(int format) { return format == AUTO ? 2 : 1; }
__device__ constexpr int tile_pieces(int format, int head) { return head * bytes(format); }
__device__ constexpr int run(int format) { return 16 / bytes(format); }

// What a code becomes as a half is the value times 1 / fold.
__device__ constexpr float fold(int format) { return format == E4M3 ? E4M3_FOLD : 1.0f; }

// The fragments of one loaded piece: 16 codes are four, 8 halves are two.
template <int format>
__device__ __forceinline__ void fragments(const uint4& piece, unsigned (&b)[4 / (format == AUTO ? 2 : 1)][2]) {
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (format == AUTO) {
            b[i / 2][i % 2] = words[i];
        } else {
            b[i][0] = format == E4M3 ? e4m3_even(words[i]) : e5m2_even(words[i]);
            b[i][1] = format == E4M3 ? e4m3_odd(words[i]) : e5m2_odd(words[i]);
        }
    }
}

// The top bit of each byte of the result is set where a code of E4M3 is not a number, which the shifts take for 480. The
// other formats carry it into the half by themselves.
__device__ __forceinline__ unsigned not_numbers(const uint4& piece) {
    const unsigned found = ((piece.x & 0x7F7F7F7Fu) + 0x01010101u) | ((piece.y & 0x7F7F7F7Fu) + 0x01010101u) |
                           ((piece.z & 0x7F7F7F7Fu) + 0x01010101u) | ((piece.w & 0x7F7F7F7Fu) + 0x01010101u);
    return found & 0x80808080u;
}

// A piece of values of which only the first `count` tokens exist; what stands in the rest of a page may be anything.
template <int format>
__device__ __forceinline__ uint4 first_tokens(const uint4& piece, int count) {
    unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
    constexpr int PER_WORD = format == AUTO ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int in_word = count - i * PER_WORD;
        unsigned mask = in_word >= PER_WORD ? 0xFFFFFFFFu : 0u;
        if constexpr (format == AUTO) {
            if (in_word == 1) mask = 0x0000FFFFu;
        } else {
            if (in_word == 1) mask = 0x000000FFu;
            if (in_word == 2) mask = 0x00FF00FFu;
            if (in_word == 3) mask = 0x00FFFFFFu;
        }
        words[i] &= mask;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace kv
