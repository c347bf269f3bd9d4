// What full attention does to queries and keys before it reads the cache: Gemma-style RMS norm of each head, then
// rotary embedding of its first ROTARY elements, with three positions a token (time, height, width) that take turns over
// the frequencies (interleaved multimodal rotary embedding).
//
//     n = head / sqrt(mean(head^2) + eps) * (1 + weight)
//     out[i]              = n[i] * cos - n[i + ROTARY/2] * sin        0 <= i < ROTARY/2 (halves, not neighbours)
//     out[i + ROTARY/2]   = n[i + ROTARY/2] * cos + n[i] * sin
//     cos, sin            = cache[position of the axis that owns frequency i][i], [i + ROTARY/2]
//     axis of i           = height if i%3 == 1 and i < 3*height_section, width if i%3 == 2 and i < 3*width_section, else time
//
// LANES = head dimension / 8 lanes take HEADS heads of one token, 8 neighbours of each a lane; the two elements of a
// rotated pair lie ROTARY/16 lanes apart. One head is right where tokens are few: every head then has lanes of its own.
// Where they are many, cosines and sines, weights and all reckoning of addresses serve several heads, whose loads are in
// flight together. A head's result is the same either way. Queries are slices of a wider projection (the output gate
// lies between them), hence the strides (elements). q_out and k_out are packed. positions is [3, tokens] or, with
// axis_stride 0, [tokens]. A position outside the cache reads the nearest row: the rows that pad a captured batch hold
// anything. tokens * (q_heads + k_heads) < 2^31. grid = ceil(tokens * ceil((q_heads + k_heads) / HEADS) / (THREADS / LANES)).
#include "norm/reduce.cuh"
#include "ptx/vector.cuh"

// Eight neighbouring cosines, or sines, from `frequency` on; `offset` is where a cache row keeps that kind.
__device__ __forceinline__ Vector<8> load_turns(const unsigned short* (&rows)[3], int offset, int frequency,
                                                int height_section, int width_section) {
    const Vector<8> time = load_halves<8>(rows[0], offset + frequency);
    const Vector<8> height = load_halves<8>(rows[1], offset + frequency);
    const Vector<8> width = load_halves<8>(rows[2], offset + frequency);
    Vector<8> chosen;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const int i = frequency + e;
        const bool by_height = i % 3 == 1 && i < 3 * height_section;
        const bool by_width = i % 3 == 2 && i < 3 * width_section;
        chosen.at[e] = by_height ? height.at[e] : by_width ? width.at[e] : time.at[e];
    }
    return chosen;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_mrope(unsigned short* q_out, unsigned short* k_out, const unsigned short* q, const unsigned short* k,
                  const unsigned short* q_weight, const unsigned short* k_weight, const unsigned short* cache,
                  const long long* positions, int tokens, int q_heads, int k_heads, int cache_rows, int height_section,
                  int width_section, long long q_token, long long q_head, long long k_token, long long k_head,
                  long long axis_stride, float eps) {
    constexpr int HEAD = LANES * 8;
    constexpr int PAIR = ROTARY / 16;
    static_assert(ROTARY % 16 == 0 && ROTARY <= HEAD, "a lane holds eight elements of one half");
    static_assert((PAIR & (PAIR - 1)) == 0, "a pair's lanes differ in one bit");
    const int heads = q_heads + k_heads;
    const int groups = (heads + HEADS - 1) / HEADS;
    const int units = tokens * groups;
    const int unit = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    // Lanes without heads of their own still take part in the exchange, on the last ones' data, and store nothing.
    const int read = unit < units ? unit : units - 1;
    const long long token = read / groups;
    const int first = read % groups * HEADS;
    const int beyond = unit < units ? min(first + HEADS, heads) : first;
    const int lane = threadIdx.x % LANES;
    // The table is read through the position, so positions are asked for first of all.
    long long place[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) place[axis] = positions[axis * axis_stride + token];
    Packed<8> own[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const int head = min(first + h, heads - 1);
        const unsigned short* source =
            head < q_heads ? q + token * q_token + head * q_head : k + token * k_token + (head - q_heads) * k_head;
        own[h] = load_packed<8>(source, lane * 8);
    }
    const Packed<8> q_gain = load_packed<8>(q_weight, lane * 8);
    const Packed<8> k_gain = load_packed<8>(k_weight, lane * 8);
    const bool turns = lane < 2 * PAIR;
    Vector<8> cosine, sine;
    if (turns) {
        const unsigned short* at[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const long long last = cache_rows - 1;
            at[axis] = cache + (place[axis] < 0 ? 0 : place[axis] > last ? last : place[axis]) * ROTARY;
        }
        const int frequency = lane % PAIR * 8;
        cosine = load_turns(at, 0, frequency, height_section, width_section);
        sine = load_turns(at, ROTARY / 2, frequency, height_section, width_section);
        if (lane < PAIR) {
#pragma unroll
            for (int e = 0; e < 8; ++e) sine.at[e] = -sine.at[e];
        }
    }

#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const int head = first + h;
        const bool query = head < q_heads;
        Vector<8> value = unpack<8>(own[h]);
        const Vector<8> gain = unpack<8>(query ? q_gain : k_gain);
        float squares = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) squares = fmaf(value.at[e], value.at[e], squares);
        const float scale = rsqrtf(sum_lanes<LANES>(squares) * (1.0f / HEAD) + eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            value.at[e] *= scale * (1.0f + gain.at[e]);
            const float other = __shfl_xor_sync(0xFFFFFFFFu, value.at[e], PAIR);
            if (turns) value.at[e] = fmaf(value.at[e], cosine.at[e], other * sine.at[e]);
        }
        if (head < beyond) {
            unsigned short* target =
                query ? q_out + (token * q_heads + head) * HEAD : k_out + (token * k_heads + head - q_heads) * HEAD;
            store_halves<8>(target, lane * 8, value);
        }
    }
}
