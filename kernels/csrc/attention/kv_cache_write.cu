// Stores new keys and values in their slots of the paged KV cache, in the order of attention/layout.cuh.
//
// A thread block takes 16 neighbouring tokens and one KV head; a thread 8 or 16 elements of a key, then one element of the
// values of all 16 tokens. Where the slots are one whole tile, as in a prefill, values go out 16 bytes at a time, else an
// element at a time. A negative slot is padding. Codes of 8 bits are the value over its scale, rounded to nearest even;
// what is too large becomes the greatest finite code, and what is not a number stays so.
//
// grid = (ceil(tokens / 16), KV heads). Strides of key and value count elements, those of the cache bytes; all are on
// 16-byte boundaries.
#include "attention/layout.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/half.cuh"
#include "ptx/memory.cuh"
#include "ptx/scattered.cuh"

namespace {

constexpr int BYTES = kv::bytes(FORMAT);
constexpr int RUN = kv::run(FORMAT);
constexpr int TILE_BYTES = 16 * kv::tile_pieces(FORMAT, D);
static_assert(THREADS == D, "a thread for each element of a head");

// The byte where element `i` of four codes stands in its word, and the code that stands in byte `i`: its own inverse.
__device__ __forceinline__ int place(int i) { return (i & ~3) | (i & 1) << 1 | (i >> 1 & 1); }

__device__ __forceinline__ unsigned encoded(float value) {
    constexpr int MANTISSA = FORMAT == kv::E4M3 ? 3 : 2;
    constexpr int BIAS = FORMAT == kv::E4M3 ? 7 : 15;
    constexpr float GREATEST = FORMAT == kv::E4M3 ? 448.0f : 57344.0f;
    const unsigned bits = __float_as_uint(value), sign = bits >> 24 & 0x80u;
    const float magnitude = __uint_as_float(bits & 0x7FFFFFFFu);
    if (!(magnitude == magnitude)) return sign | 0x7Fu;
    const float held = fminf(magnitude, GREATEST);
    constexpr int SHIFT = 23 - MANTISSA;
    // Below the normals the step is 2^(1 - BIAS - MANTISSA): a number whose last place that is rounds the sum to it.
    constexpr unsigned STEPS = static_cast<unsigned>(127 + 23 + 1 - BIAS - MANTISSA) << 23;
    if (__float_as_uint(held) < static_cast<unsigned>(128 - BIAS) << 23) {
        return sign | (__float_as_uint(held + __uint_as_float(STEPS)) - STEPS);
    }
    const unsigned of = __float_as_uint(held);
    const unsigned rounded = of + (1u << (SHIFT - 1)) - 1u + (of >> SHIFT & 1u);
    return sign | ((rounded >> SHIFT) - (static_cast<unsigned>(127 - BIAS) << MANTISSA));
}

// What the cache stores for a half.
__device__ __forceinline__ unsigned stored(unsigned short half, float scale) {
    if constexpr (FORMAT == kv::AUTO) {
        return half;
    } else {
        return encoded(half_to_float(half) / scale);
    }
}

// RUN elements of a row as one piece of the cache.
__device__ __forceinline__ uint4 piece_of(const unsigned short* row, float scale) {
    if constexpr (FORMAT == kv::AUTO) {
        return load_16(row);
    } else {
        const uint4 low = load_16(row), high = load_16(row + 8);
        const unsigned pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned first = pairs[2 * i], second = pairs[2 * i + 1];
            words[i] = stored(first & 0xFFFFu, scale) | stored(second & 0xFFFFu, scale) << 8 |
                       stored(first >> 16, scale) << 16 | stored(second >> 16, scale) << 24;
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// The bytes of a tile before the piece that holds elements of a key, or of the values of one head element.
__device__ __forceinline__ int key_piece(int token, int element) {
    const int run = element / RUN, lane = (token & 3) + ((token & 4) << 2) + (token >> 3) * 4 + run % 2 * 8;
    return (run / 2 * kv::STEP + lane) * 16;
}
__device__ __forceinline__ int value_piece(int token, int element) {
    const int column = element % 8, lane = (column & 3) + ((column & 4) << 2) + element / 8 % 4 * 4;
    return ((element / 32 * BYTES + token / RUN) * kv::STEP + lane) * 16;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    kv_cache_write(unsigned char* cache, const unsigned short* key, const unsigned short* value, const long long* slots,
                   const float* k_scale, const float* v_scale, int tokens, int page_size, long long page_stride,
                   long long value_offset, long long key_stride, long long key_head, long long value_stride,
                   long long value_head) {
    const int first = blockIdx.x * kv::TILE, head = blockIdx.y;
    const int count = min(kv::TILE, tokens - first);
    const int tiles = page_size / kv::TILE;
    const auto tile_of = [=](long long slot) {
        const long long page = slot / page_size;
        const int tile = static_cast<int>(slot - page * page_size) / kv::TILE;
        return cache + page * page_stride + (static_cast<long long>(head) * tiles + tile) * TILE_BYTES;
    };

    const float by_key = FORMAT == kv::AUTO ? 1.0f : load_float(k_scale);
    for (int i = threadIdx.x; i < count * (D / RUN); i += THREADS) {
        const int token = i / (D / RUN), element = i % (D / RUN) * RUN;
        const long long slot = load_long(slots + first + token);
        if (slot < 0) continue;
        const unsigned short* row = key + (first + token) * key_stride + head * key_head;
        const int within = static_cast<int>(slot % page_size) % kv::TILE;
        store_16(tile_of(slot) + key_piece(within, element), piece_of(row + element, by_key));
    }

    const float by_value = FORMAT == kv::AUTO ? 1.0f : load_float(v_scale);
    const unsigned short* column = value + first * value_stride + head * value_head + threadIdx.x;
    const long long start = load_long(slots + first);
    bool whole = count == kv::TILE && start >= 0 && start % page_size % kv::TILE == 0;
    for (int token = 1; whole && token < kv::TILE; ++token) whole = load_long(slots + first + token) == start + token;
    if (whole) {
#pragma unroll
        for (int piece = 0; piece < BYTES; ++piece) {
            unsigned words[4] = {};
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                const unsigned code = stored(load_2(column + (piece * RUN + i) * value_stride), by_value);
                const int at = BYTES == 1 ? place(i) : i;
                words[at * BYTES / 4] |= code << at * BYTES % 4 * 8;
            }
            store_16(tile_of(start) + value_offset + value_piece(piece * RUN, threadIdx.x),
                     make_uint4(words[0], words[1], words[2], words[3]));
        }
        return;
    }
    for (int token = 0; token < count; ++token) {
        const long long slot = load_long(slots + first + token);
        if (slot < 0) continue;
        const int within = static_cast<int>(slot % page_size) % kv::TILE;
        unsigned char* to = tile_of(slot) + value_offset + value_piece(within, threadIdx.x);
        const unsigned code = stored(load_2(column + token * value_stride), by_value);
        if constexpr (BYTES == 1) {
            store_1(to + place(within), code);
        } else {
            store_2(to + within % RUN * 2, static_cast<unsigned short>(code));
        }
    }
}
