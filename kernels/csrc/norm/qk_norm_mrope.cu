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
    const Vector<8> time = unpack<8>({load_16_here(rows[0] + offset + frequency)});
    const Vector<8> height = unpack<8>({load_16_here(rows[1] + offset + frequency)});
    const Vector<8> width = unpack<8>({load_16_here(rows[2] + offset + frequency)});
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
    // Heads and weights are asked for before the table is, whose rows wait for the positions. Every lane reads the table,
    // where the lanes that turn nothing read what others read: there is no branch to wait behind.
    // Only one of the two pointers is in its tensor at a time. Beyond the last head, that one is read again.
    const unsigned short* q_at = q + token * q_token + first * q_head + lane * 8;
    const unsigned short* k_at = k + token * k_token + (first - q_heads) * k_head + lane * 8;
    const unsigned short* at = q_at;
    Packed<8> own[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (first + h < heads) at = first + h < q_heads ? q_at : k_at;
        own[h] = {load_16_here(at)};
        q_at += q_head;
        k_at += k_head;
    }
    const Packed<8> q_gain = {load_16_here(q_weight + lane * 8)};
    const Packed<8> k_gain = {load_16_here(k_weight + lane * 8)};
    // Holds the loads above it where they are: the assembler moves none across, and would wait for the positions first.
    __syncwarp();
    long long place[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) place[axis] = positions[axis * axis_stride + token];
    const unsigned short* row[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
        const long long last = cache_rows - 1;
        row[axis] = cache + (place[axis] < 0 ? 0 : place[axis] > last ? last : place[axis]) * ROTARY;
    }
    const int frequency = lane % PAIR * 8;
    const Vector<8> cosine = load_turns(row, 0, frequency, height_section, width_section);
    Vector<8> sine = load_turns(row, ROTARY / 2, frequency, height_section, width_section);
    const bool turns = lane < 2 * PAIR;
#pragma unroll
    for (int e = 0; e < 8; ++e) sine.at[e] = lane < PAIR ? -sine.at[e] : sine.at[e];

    unsigned short* const q_to = q_out + (token * q_heads + first) * HEAD + lane * 8;
    unsigned short* const k_to = k_out + (token * k_heads + first - q_heads) * HEAD + lane * 8;
    Vector<8> gain;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const int head = first + h;
        if (h == 0 || head == q_heads) {
            gain = unpack<8>(head < q_heads ? q_gain : k_gain);
#pragma unroll
            for (int e = 0; e < 8; ++e) gain.at[e] += 1.0f;
        }
        Vector<8> value = unpack<8>(own[h]);
        float squares = 0.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) squares = fmaf(value.at[e], value.at[e], squares);
        const float scale = rsqrtf(sum_lanes<LANES>(squares) * (1.0f / HEAD) + eps);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            value.at[e] *= scale * gain.at[e];
            const float other = __shfl_xor_sync(0xFFFFFFFFu, value.at[e], PAIR);
            if (turns) value.at[e] = fmaf(value.at[e], cosine.at[e], other * sine.at[e]);
        }
        if (head < beyond) store_halves<8>((head < q_heads ? q_to : k_to) + h * HEAD, 0, value);
    }
}
