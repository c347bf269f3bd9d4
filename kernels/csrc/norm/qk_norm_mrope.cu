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
// LANES = head dimension / 8 lanes own one head, 8 neighbours a lane; the two elements of a rotated pair lie ROTARY/16
// lanes apart. Queries are slices of a wider projection (the output gate lies between them), hence the strides
// (elements). q_out and k_out are packed. positions is [3, tokens] or, with axis_stride 0, [tokens].
// A position outside the cache reads the nearest row: the rows that pad a captured batch hold anything.
// tokens * (q_heads + k_heads) < 2^31. grid = ceil(that / (THREADS / LANES)).
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
    const int rows = tokens * heads;
    const int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    // A group without a row still takes part in the exchange of lanes, on the last row's data, and stores nothing.
    const int read = row < rows ? row : rows - 1;
    const long long token = read / heads;
    const int head = read % heads;
    const int lane = threadIdx.x % LANES;
    const bool query = head < q_heads;
    const unsigned short* source = query ? q + token * q_token + head * q_head : k + token * k_token + (head - q_heads) * k_head;
    Vector<8> value = load_halves<8>(source, lane * 8);
    const Vector<8> gain = load_halves<8>(query ? q_weight : k_weight, lane * 8);
    // The table is read through the position: asked for before the norm, so that the two waits overlap.
    const bool turns = lane < 2 * PAIR;
    Vector<8> cosine, sine;
    if (turns) {
        const unsigned short* at[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            const long long position = positions[axis * axis_stride + token];
            const long long last = cache_rows - 1;
            at[axis] = cache + (position < 0 ? 0 : position > last ? last : position) * ROTARY;
        }
        const int frequency = lane % PAIR * 8;
        cosine = load_turns(at, 0, frequency, height_section, width_section);
        sine = load_turns(at, ROTARY / 2, frequency, height_section, width_section);
    }

    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(value.at[e], value.at[e], squares);
    const float scale = rsqrtf(sum_lanes<LANES>(squares) * (1.0f / HEAD) + eps);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        value.at[e] *= scale * (1.0f + gain.at[e]);
        const float other = __shfl_xor_sync(0xFFFFFFFFu, value.at[e], PAIR);
        if (turns) value.at[e] = fmaf(value.at[e], cosine.at[e], (lane < PAIR ? -other : other) * sine.at[e]);
    }
    if (row < rows) {
        unsigned short* target = query ? q_out + (token * q_heads + head) * HEAD : k_out + (token * k_heads + head - q_heads) * HEAD;
        store_halves<8>(target, lane * 8, value);
    }
}
