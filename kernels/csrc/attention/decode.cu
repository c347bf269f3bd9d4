// Attention of a few query rows a sequence (1 in decode, up to 16 in verification) over the paged KV cache, causal.
//
// A thread block takes one KV head of one sequence and one partition of its context: all query heads of the KV head and all
// rows at once, so that keys and values are read once. Rows are padded to MT tiles of eight; where there are more than
// 8 * MT of them the block goes over its partition again. In each chunk of 128 tokens:
//
//     scores     a warp multiplies its tile of 16 keys with all rows: S = Q K^T, FP32
//     softmax    the greatest score of each row so far, over all warps; P = 2^(S - greatest) as halves to shared memory
//     values     a warp adds P V for its 32 elements of the head: O, FP32, in registers from the first chunk to the last
//
// Greatest scores and sums of P are FP32. Every sum has one order, which the number of warps does not change: a tile of keys
// and a slice of values are each one warp's, whichever. The fragments of keys and values go from memory to the tensor
// core through registers alone (attention/layout.cuh).
//
// The grid is (partitions, KV heads, sequences); lengths, rows and partitions of a sequence are read on the device
// (attention/partitions.cuh). One partition in the grid: the block writes its rows of `out`. Else partitions leave O, not
// yet divided, in partials[partition][token][query head][D], and (greatest score in powers of two, sum of P) in
// states[partition][token][query head], for attention/reduce.cu.
//
// A row that sees no token becomes zero. A NaN in a key that a sequence holds makes all rows of the block NaN, one in a value
// makes its element of the head NaN in all of them; what stands beyond the length is never looked at.
//
// Strides of query and out count elements; page_stride, head_stride and value_offset pieces of 16 bytes. All addresses are
// on 16-byte boundaries.
#include "attention/context.cuh"
#include "attention/partitions.cuh"
#include "attention/queries.cuh"
#include "attention/scores.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/exponent.cuh"
#include "ptx/half.cuh"

namespace {

constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 8 * MT;
constexpr int TOKENS = CHUNK * kv::TILE;

using Way = Context<FORMAT, D, WARPS>;
using Rows = Queries<ROWS, D, THREADS>;
constexpr int PARTS = Way::PARTS;
constexpr int MMAS = 4 / PARTS;             // in a loaded piece
constexpr int PIECES = 2 / PARTS;           // of 16 bytes of A for them
constexpr int P_STRIDE = TOKENS / 8 + 1;    // pieces; padded as the queries are
constexpr int P_BYTES = ROWS * P_STRIDE * 16;
static_assert(SHARED == Rows::BYTES + P_BYTES + ROWS * CHUNK * 4, "as the table computes it");

// What a lane keeps of its rows, two of each tile: (lane & 1) + 2 * i, plus 4 from lane 16 on (m8n8k4::c_row).
struct State {
    float greatest[MT][2];
    float sum[Way::UNITS_EACH][MT][2];  // of this lane's own P; lanes and tiles are added up at the end
};

// c[row tile] += A B for the fragments of a loaded piece; A's rows are `stride` pieces apart.
__device__ __forceinline__ void multiply(float (&c)[MT][8], const uint4& loaded, const uint4* a_row, int stride) {
    unsigned b[MMAS][2];
    kv::fragments<FORMAT>(loaded, b);
#pragma unroll
    for (int row = 0; row < MT; ++row) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const uint4 piece = a_row[8 * row * stride + i];
            const unsigned a[2][2] = {{piece.x, piece.y}, {piece.z, piece.w}};
            mma_m8n8k4(c[row], a[0], b[2 * i]);
            mma_m8n8k4(c[row], a[1], b[2 * i + 1]);
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    attention_decode(unsigned short* out, float* partials, float* states, const unsigned short* query, const uint4* cache,
                     const int* tables, const int* lengths, const int* starts, const float* k_scale,
                     const float* v_scale, float scale, int group, int tokens, int least, int page_tiles,
                     int table_stride, unsigned page_stride, unsigned head_stride, unsigned value_offset,
                     long long query_stride, long long query_head, long long out_stride, long long out_head) {
    extern __shared__ uint4 shared[];
    uint4* const queries = shared;
    uint4* const weights = queries + Rows::BYTES / 16;                                   // P
    float* const of_tiles = reinterpret_cast<float*>(weights + P_BYTES / 16);            // [row][tile]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv_head = blockIdx.y, sequence = blockIdx.z;

    const int length = max(load_int(lengths + sequence), 0);
    const int first_row = load_int(starts + sequence);
    const int rows = load_int(starts + sequence + 1) - first_row;
    const int parts = partitions_of(length, gridDim.x, least);
    if (static_cast<int>(blockIdx.x) >= parts || rows <= 0) return;
    const int tiles = (length + kv::TILE - 1) / kv::TILE;
    const int begin = first_tile(tiles, blockIdx.x, parts);
    const int end = first_tile(tiles, blockIdx.x + 1, parts);
    const int last_token = min(length, end * kv::TILE);
    const float factor = scale * LOG2_E * kv::fold(FORMAT) * (FORMAT == kv::AUTO ? 1.0f : load_float(k_scale));

    const Way way{cache + kv_head * head_stride + lane, tables + sequence * table_stride, page_stride, value_offset,
                  static_cast<unsigned>(tokens) >> 31, page_tiles, end, warp, lane};
    const int a_row = m8n8k4::a_row(lane);
    const uint4* const q_row = queries + a_row * Rows::STRIDE + (lane >> 3 & 1) * PIECES;
    const uint4* const p_row = weights + a_row * P_STRIDE;
    const int row_of_lane = m8n8k4::c_row(lane, 0);

    for (int first = 0; first < rows * group; first += ROWS) {
        unsigned here = way.place_of(begin, way.page_of(begin));
        uint4 ahead[2][Way::LOADS] = {};
        way.ask(ahead[0], 0, begin, here);
        __syncthreads();  // The rows before these have been read.
        Rows::stage(queries, query + first_row * query_stride + kv_head * group * query_head, query_stride, query_head,
                    group, first, rows * group);
        __syncthreads();

        State state;
        float sum[Way::SLICES_EACH][MT][8] = {};
        // What was no number: bit 7 of some byte of values, bit 6 of keys, which are with the first slice's.
        unsigned odd[Way::SLICES_EACH] = {};
#pragma unroll
        for (int i = 0; i < MT * 2; ++i) {
            state.greatest[i / 2][i % 2] = minus_infinity();
#pragma unroll
            for (int unit = 0; unit < Way::UNITS_EACH; ++unit) state.sum[unit][i / 2][i % 2] = 0.0f;
        }

#pragma unroll 1
        for (int chunk = begin; chunk < end; chunk += CHUNK) {
            const int page_after = way.page_of(chunk + CHUNK);
            // The batch after `batch`, which is now waited for, goes where the one before it was; after the chunk's last comes
            // the next chunk's first.
            const auto ask_after = [&](int batch) {
                const bool same = batch + 1 < Way::BATCHES;
                const unsigned arrived = way.arrived(ahead[batch % 2]);
                if (!same) here = way.place_of(chunk + CHUNK, page_after);
                way.ask(ahead[(batch + 1) % 2], same ? batch + 1 : 0, same ? chunk : chunk + CHUNK, here + arrived);
            };
            // Does some row not see all of the chunk, or does the partition end in it?
            const bool ragged = last_token < chunk * kv::TILE + TOKENS;
            const bool masked = ragged || length - rows + 1 < chunk * kv::TILE + TOKENS;

            // Scores.
            float scores[Way::UNITS_EACH][MT][4];
#pragma unroll
            for (int i = 0; i < Way::UNITS_EACH; ++i) {
                const int unit = way.unit(i);
                const bool there = unit < CHUNK && chunk + unit < end;
                float c[MT][8] = {};
                // Whether this lane's token, if a sequence has it, is to be looked at for what is no number.
                const bool held = (chunk + unit) * kv::TILE + (lane & 4) * 2 + m8n8k4::b_column(lane) < last_token;
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const int batch = i * PARTS + part;
                    ask_after(batch);
                    if (there) {
#pragma unroll
                        for (int load = 0; load < Way::KEY_LOADS; ++load) {
                            const uint4& piece = ahead[batch % 2][load];
                            if (FORMAT == kv::E4M3) odd[0] |= held ? kv::not_numbers(piece) >> 1 : 0u;
                            multiply(c, piece, q_row + (part * Way::KEY_LOADS + load) * 2 * PIECES, Rows::STRIDE);
                        }
                    }
                }
#pragma unroll
                for (int row = 0; row < MT; ++row) join(scores[i][row], c[row], lane, factor);
                if (masked) {
                    const int token = (chunk + unit) * kv::TILE + first_token(lane);
                    const int sees_all = there ? last_token : 0;
#pragma unroll
                    for (int j = 0; j < MT * 4; ++j) {
                        const int row = first + j / 4 * 8 + row_of_lane + (j & 2);
                        const int visible = min(length - rows + row / group + 1, sees_all);
                        if (token + (j & 1) >= visible) scores[i][j / 4][j % 4] = minus_infinity();
                    }
                }
#pragma unroll
                for (int j = 0; j < MT * 2; ++j) {
                    const float* pair = scores[i][j / 2] + j % 2 * 2;
                    const float greatest = greatest_of_row(fmaxf(pair[0], pair[1]));
                    if ((lane & 14) == 0 && unit < CHUNK) {
                        of_tiles[(j / 2 * 8 + row_of_lane + j % 2 * 2) * CHUNK + unit] = greatest;
                    }
                }
            }
            __syncthreads();

            // Softmax.
#pragma unroll
            for (int j = 0; j < MT * 2; ++j) {
                const float4* tiles_of_row =
                    reinterpret_cast<const float4*>(of_tiles + (j / 2 * 8 + row_of_lane + j % 2 * 2) * CHUNK);
                const float4 low = tiles_of_row[0], high = tiles_of_row[1];
                const float here_greatest = fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)),
                                                  fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w)));
                const float before = state.greatest[j / 2][j % 2], now = fmaxf(before, here_greatest);
                state.greatest[j / 2][j % 2] = now;
                const bool none = now == minus_infinity();
                const float shrink = none ? 1.0f : exp2_fast(before - now);
                const float base = none ? 0.0f : now;
#pragma unroll
                for (int i = 0; i < Way::SLICES_EACH * 4; ++i) {
                    sum[i / 4][j / 2][i % 4 / 2 * 4 + j % 2 * 2 + i % 2] *= shrink;
                }
#pragma unroll
                for (int i = 0; i < Way::UNITS_EACH; ++i) {
                    const float* pair = scores[i][j / 2] + j % 2 * 2;
                    const float p[2] = {exp2_fast(pair[0] - base), exp2_fast(pair[1] - base)};
                    float& sum_of_lane = state.sum[i][j / 2][j % 2];
                    sum_of_lane = sum_of_lane * shrink + (p[0] + p[1]);
                    const int token = way.unit(i) * kv::TILE + first_token(lane);
                    const int row = j / 2 * 8 + row_of_lane + j % 2 * 2;
                    if (way.unit(i) < CHUNK) {
                        reinterpret_cast<unsigned*>(weights + row * P_STRIDE)[token / 2] = float2_to_half2(p[0], p[1]);
                    }
                }
            }
            __syncthreads();

            // Values.
#pragma unroll
            for (int i = 0; i < Way::SLICES_EACH; ++i) {
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const int batch = Way::OF_KEYS + i * PARTS + part;
                    uint4 (&loaded)[Way::LOADS] = ahead[batch % 2];
                    ask_after(batch);
                    if (way.slice(i) < Way::SLICES) {
                        if (ragged) {
#pragma unroll
                            for (int load = 0; load < Way::VALUE_LOADS; ++load) {
                                const int step = part * Way::VALUE_LOADS + load;
                                const int left = last_token - chunk * kv::TILE - step * kv::run(FORMAT);
                                loaded[load] = kv::first_tokens<FORMAT>(loaded[load], left);
                            }
                        }
#pragma unroll
                        for (int load = 0; load < Way::VALUE_LOADS; ++load) {
                            const int step = part * Way::VALUE_LOADS + load;
                            if (FORMAT == kv::E4M3) odd[i] |= kv::not_numbers(loaded[load]);
                            multiply(sum[i], loaded[load], p_row + step * PIECES, P_STRIDE);
                        }
                    }
                }
            }
        }

        // The sum of P of each row: over lanes, then over tiles in their order.
        const bool odd_keys = FORMAT == kv::E4M3 && __ballot_sync(ALL, (odd[0] & 0x40404040u) != 0) != 0;
#pragma unroll
        for (int i = 0; i < Way::UNITS_EACH; ++i) {
#pragma unroll
            for (int j = 0; j < MT * 2; ++j) {
                const float of_tile = odd_keys ? no_number() : sum_of_row(state.sum[i][j / 2][j % 2]);
                if ((lane & 14) == 0 && way.unit(i) < CHUNK) {
                    of_tiles[(j / 2 * 8 + row_of_lane + j % 2 * 2) * CHUNK + way.unit(i)] = of_tile;
                }
            }
        }
        __syncthreads();
        const float by_value = kv::fold(FORMAT) * (FORMAT == kv::AUTO ? 1.0f : load_float(v_scale));
#pragma unroll
        for (int i = 0; i < Way::SLICES_EACH; ++i) {
            const int slice = way.slice(i);
            const unsigned odd_lanes = FORMAT == kv::E4M3 ? __ballot_sync(ALL, (odd[i] & 0x80808080u) != 0) : 0;
            if (slice >= Way::SLICES) continue;
#pragma unroll
            for (int j = 0; j < MT * 2; ++j) {
                const int in_block = j / 2 * 8 + row_of_lane + j % 2 * 2, row = first + in_block;
                if (row >= rows * group) continue;
                const int token = row / group;
                const int head = kv_head * group + row - token * group;
                float total = 0.0f;
#pragma unroll
                for (int tile = 0; tile < CHUNK; ++tile) total += of_tiles[in_block * CHUNK + tile];
                const long long number = static_cast<long long>(blockIdx.x) * tokens + first_row + token;
                const long long place = number * (gridDim.y * group) + head;
                const bool alone = gridDim.x == 1, sees = length - rows + token + 1 > 0;
                const float times = alone ? by_value / total : by_value;
                if (!alone && slice == 0 && m8n8k4::quad_pair(lane) == 0 && (lane & 2) == 0) {
                    store_8(states + 2 * place, make_float2(state.greatest[j / 2][j % 2], total));
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = half * 4 + (lane & 2);
                    const int loader = m8n8k4::quad_pair(lane) * 4 + (lane & 2) + half * 16;
                    const float* c = sum[i][j / 2] + half * 4 + j % 2 * 2;
                    const float x = odd_lanes >> loader & 1 ? no_number() : c[0] * times;
                    const float y = odd_lanes >> (loader + 1) & 1 ? no_number() : c[1] * times;
                    const int element = slice * 32 + m8n8k4::quad_pair(lane) * 8 + column;
                    if (alone) {
                        store_4(out + (first_row + token) * out_stride + head * out_head + element,
                                sees ? float2_to_half2(x, y) : 0u);
                    } else {
                        store_8(partials + place * D + element, make_float2(x, y));
                    }
                }
            }
        }
    }
}
