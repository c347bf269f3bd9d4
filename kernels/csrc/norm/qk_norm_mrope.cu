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
// LANES = head dimension / 16 lanes take one head: eight neighbours each from either half of what is turned, or of what is
// not, so that a rotated pair lies in one lane:
//
//     lane          0 .. ROTARY/16 - 1          ROTARY/16 .. LANES - 1
//     low           8 * lane                    8 * lane + ROTARY/2
//     high          low + ROTARY/2              low + (head dimension - ROTARY)/2
//
// Each lane looks up OWN frequencies, each from the axis that owns it, and the turning lanes gather theirs by shuffles.
// Queries are slices of a wider projection (the output gate lies between them), hence the strides (elements). q_out and
// k_out are packed. positions is [3, tokens] or, with axis_stride 0, [tokens]. A position outside the cache reads the nearest
// row: the rows that pad a captured batch hold anything. tokens * (q_heads + k_heads) < 2^31.
// grid = ceil(tokens * (q_heads + k_heads) / (THREADS / LANES)): neighbouring lanes take neighbouring heads of a token.
#include "norm/reduce.cuh"
#include "ptx/vector.cuh"

// Frequencies that a lane looks up: the least power of two with which all lanes together have all of them.
__device__ constexpr int own(int frequencies) {
    int each = 1;
    while (each * LANES < frequencies) each *= 2;
    return each;
}

// 1024 threads an SM are asked for so that the assembler takes 64 registers for more loads on the way; by itself it is
// content with 44.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    qk_norm_mrope(unsigned short* q_out, unsigned short* k_out, const unsigned short* q, const unsigned short* k,
                  const unsigned short* q_weight, const unsigned short* k_weight, const unsigned short* cache,
                  const long long* positions, int tokens, int q_heads, int k_heads, int cache_rows, int height_section,
                  int width_section, long long q_token, long long q_head, long long k_token, long long k_head,
                  long long axis_stride, float eps) {
    constexpr int HEAD = LANES * 16;
    constexpr int OWN = own(ROTARY / 2);
    static_assert(ROTARY % 16 == 0 && ROTARY <= HEAD, "a lane holds eight elements of either half");
    static_assert(8 % OWN == 0, "the eight frequencies of a turning lane are those of whole lanes");
    const int heads = q_heads + k_heads;
    const int units = tokens * heads;
    const int unit = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    // Lanes without a head of their own still take part in the exchange, on the last one's data, and store nothing.
    const int read = min(unit, units - 1);
    const long long token = read / heads;
    const int head = read % heads;
    const bool query = head < q_heads;
    const int lane = threadIdx.x % LANES;
    const bool turns = lane < ROTARY / 16;
    const int low_at = lane * 8 + (turns ? 0 : ROTARY / 2);
    const int apart = turns ? ROTARY / 2 : (HEAD - ROTARY) / 2;

    // Head and weights are asked for before the table is, whose rows wait for the positions. Both weights, of which one is
    // chosen when the table is here: an earlier choice waits for them.
    const long long at = static_cast<long long>(query ? head : head - q_heads) * (query ? q_head : k_head);
    const unsigned short* const from = (query ? q + token * q_token : k + token * k_token) + low_at + at;
    const Packed<8> low = {load_16_here(from)}, high = {load_16_here(from + apart)};
    const Packed<8> q_low = {load_16_here(q_weight + low_at)}, q_high = {load_16_here(q_weight + low_at + apart)};
    const Packed<8> k_low = {load_16_here(k_weight + low_at)}, k_high = {load_16_here(k_weight + low_at + apart)};
    // Holds the loads above it where they are: the assembler moves none across, and would wait for the positions first.
    __syncwarp();
    float cosines[OWN], sines[OWN];
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int i = min(lane * OWN + o, ROTARY / 2 - 1);
        const bool by_height = i % 3 == 1 && i < 3 * height_section;
        const bool by_width = i % 3 == 2 && i < 3 * width_section;
        const long long place = positions[(by_height ? axis_stride : by_width ? 2 * axis_stride : 0) + token];
        const long long last = cache_rows - 1;
        const unsigned short* const row = cache + (place < 0 ? 0 : place > last ? last : place) * ROTARY + i;
        cosines[o] = half_to_float(load_2(row));
        sines[o] = half_to_float(load_2(row + ROTARY / 2));
    }

    Vector<8> cosine, sine;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const int owner = lane * (8 / OWN) + e / OWN;
        const float shared_cosine = __shfl_sync(0xFFFFFFFFu, cosines[e % OWN], owner, LANES);
        const float shared_sine = __shfl_sync(0xFFFFFFFFu, sines[e % OWN], owner, LANES);
        cosine.at[e] = turns ? shared_cosine : 1.0f;
        sine.at[e] = turns ? shared_sine : 0.0f;
    }

    // Gain and turn are one factor for an element itself and one for its partner. They make the way from the table to the
    // result the longest one, which the assembler starts first: else the table waits for the head's sum.
    Packed<8> low_weight = q_low, high_weight = q_high;
    if (!query) low_weight = k_low, high_weight = k_high;
    const Vector<8> low_gain = unpack<8>(low_weight), high_gain = unpack<8>(high_weight);
    Vector<8> low_own, low_partner, high_own, high_partner;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        low_own.at[e] = (1.0f + low_gain.at[e]) * cosine.at[e];
        low_partner.at[e] = -((1.0f + high_gain.at[e]) * sine.at[e]);
        high_own.at[e] = (1.0f + high_gain.at[e]) * cosine.at[e];
        high_partner.at[e] = (1.0f + low_gain.at[e]) * sine.at[e];
    }
    const Vector<8> a = unpack<8>(low), b = unpack<8>(high);
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(a.at[e], a.at[e], fmaf(b.at[e], b.at[e], squares));
    const float scale = rsqrtf(sum_lanes<LANES>(squares) * (1.0f / HEAD) + eps);
    Vector<8> low_out, high_out;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        low_out.at[e] = scale * fmaf(a.at[e], low_own.at[e], b.at[e] * low_partner.at[e]);
        high_out.at[e] = scale * fmaf(b.at[e], high_own.at[e], a.at[e] * high_partner.at[e]);
    }
    if (unit >= units) return;
    unsigned short* const to =
        low_at + (query ? q_out + (token * q_heads + head) * HEAD : k_out + (token * k_heads + head - q_heads) * HEAD);
    store_halves<8>(to, 0, low_out);
    store_halves<8>(to + apart, 0, high_out);
}
