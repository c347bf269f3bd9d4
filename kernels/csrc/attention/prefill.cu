// Attention of many query rows a sequence (a prefill chunk) over the paged KV cache, causal, of any number of rows.
//
// A thread block takes 64 rows of one KV head and one sequence, row r being query row r / group, head r % group, and goes
// through all tokens that the last of them sees, in chunks of 128. Its eight warps are two groups of 32 rows by four:
//
//     scores     a warp multiplies two tiles of 16 keys with its 32 rows: S = Q K^T, FP32
//     softmax    the greatest score of each row so far, over four warps; P = 2^(S - greatest) as halves to shared memory
//     values     a warp adds P V for its quarter of the head and 32 rows: O, FP32, in registers from first chunk to last
//
// Fragments of keys and values go from memory to the tensor core through registers (attention/layout.cuh), a batch
// ahead of their use; queries and P come out of shared memory. Every sum has one order.
//
// The grid is (row blocks, KV heads): rows of each sequence are rounded up to whole blocks, and blocks left over end at
// once. The last block comes first: it sees most. A row that sees no token becomes zero. A NaN in a key makes the rows
// that see it NaN, in E4M3 all rows of blocks that read it; one in a value makes its element of the head NaN in all rows
// of blocks that read it. What stands beyond the length is never looked at.
//
// Strides of query and out count elements; page_stride, head_stride and value_offset pieces of 16 bytes. All addresses are
// on 16-byte boundaries.
#include "attention/layout.cuh"
#include "attention/queries.cuh"
#include "attention/scores.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/exponent.cuh"
#include "ptx/half.cuh"
#include "ptx/scattered.cuh"
#include "ptx/stream.cuh"

namespace {

constexpr int ROW_GROUPS = 2, COLUMN_GROUPS = 4;  // of warps
constexpr int MT = 4;                             // row tiles of a warp
constexpr int ROWS = 8 * MT * ROW_GROUPS;
constexpr int CHUNK = 8;  // tiles
constexpr int TOKENS = CHUNK * kv::TILE;

using Rows = Queries<ROWS, D, THREADS>;
constexpr int PARTS = kv::bytes(FORMAT);
constexpr int MMAS = 4 / PARTS;           // in a loaded piece
constexpr int PIECES = 2 / PARTS;         // of 16 bytes of A for them
constexpr int P_STRIDE = TOKENS / 8 + 1;  // pieces; padded as the queries are
constexpr int P_BYTES = ROWS * P_STRIDE * 16;
constexpr int SLICES = D / 32;
constexpr int WIDE = 2;                              // tiles of keys, or slices of values, of a warp
// Steps of each in a batch, which has at least 32 products a warp: as many as the registers hold.
constexpr int DEEP = FORMAT == kv::E4M3 ? 1 : 2;
constexpr int KEY_DEEP = D * PARTS == 64 ? 1 : DEEP;
constexpr int KEY_BATCHES = D * PARTS / 32 / KEY_DEEP;   // of a chunk
constexpr int VALUE_BATCHES = CHUNK * PARTS / DEEP;  // of a chunk
static_assert(THREADS == 32 * ROW_GROUPS * COLUMN_GROUPS && WIDE * COLUMN_GROUPS == CHUNK, "a chunk is shared out evenly");
static_assert(KEY_BATCHES % 2 == 0 && VALUE_BATCHES % 2 == 0, "a phase begins with the first of two sets of registers");
static_assert(SHARED == Rows::BYTES + P_BYTES + ROWS * COLUMN_GROUPS * 4, "as the table computes it");

using Sums = float[MT][8];

// c[i] += A B_i for the pieces of WIDE tiles or slices, which share the rows of A, `stride` pieces apart.
__device__ __forceinline__ void multiply(Sums (&c)[WIDE], const uint4 (&pieces)[WIDE], const uint4* a_row, int stride) {
    unsigned b[WIDE][MMAS][2];
#pragma unroll
    for (int i = 0; i < WIDE; ++i) kv::fragments<FORMAT>(pieces[i], b[i]);
#pragma unroll
    for (int row = 0; row < MT; ++row) {
#pragma unroll
        for (int part = 0; part < PIECES; ++part) {
            const uint4 piece = a_row[8 * row * stride + part];
            const unsigned a[2][2] = {{piece.x, piece.y}, {piece.z, piece.w}};
#pragma unroll
            for (int k = 0; k < 2; ++k) {
#pragma unroll
                for (int i = 0; i < WIDE; ++i) mma_m8n8k4(c[i][row], a[k], b[i][2 * part + k]);
            }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_prefill(unsigned short* out, const unsigned short* query, const uint4* cache, const int* tables,
                      const int* lengths, const int* starts, const float* k_scale, const float* v_scale, float scale,
                      int group, int sequences, int page_tiles, int table_stride, unsigned page_stride,
                      unsigned head_stride, unsigned value_offset, long long query_stride, long long query_head,
                      long long out_stride, long long out_head) {
    extern __shared__ uint4 shared[];
    uint4* const queries = shared;
    uint4* const weights = queries + Rows::BYTES / 16;                         // P
    float* const of_groups = reinterpret_cast<float*>(weights + P_BYTES / 16);  // [row][column group of warps]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row_group = warp / COLUMN_GROUPS, column_group = warp % COLUMN_GROUPS;
    const int kv_head = blockIdx.y;

    // Which rows: the sequence in which block `left` of all falls.
    int left = static_cast<int>(gridDim.x - 1 - blockIdx.x), sequence = 0, first_row = load_int(starts), rows = 0;
    for (; sequence < sequences; ++sequence) {
        const int next = load_int(starts + sequence + 1);
        rows = next - first_row;
        const int blocks = (max(rows, 0) * group + ROWS - 1) / ROWS;
        if (left < blocks) break;
        left -= blocks;
        first_row = next;
    }
    if (sequence >= sequences) return;
    const int first = left * ROWS, total = rows * group;
    const int length = max(load_int(lengths + sequence), 0);
    const int computed = length - rows;
    const int last_token = max(computed + (min(first + ROWS, total) - 1) / group + 1, 0);  // that some row sees
    const int end = (last_token + kv::TILE - 1) / kv::TILE;
    const float factor = scale * LOG2_E * kv::fold(FORMAT) * (FORMAT == kv::AUTO ? 1.0f : load_float(k_scale));

    const uint4* const pages = cache + kv_head * head_stride + lane;
    const int* const table = tables + sequence * static_cast<long long>(table_stride);
    // Where the tile that this lane looks after in the chunk at tile `chunk` lies.
    const auto place_of = [&](int chunk) {
        const int tile = chunk + lane % CHUNK;
        if (tile >= end) return 0u;
        const unsigned page = static_cast<unsigned>(load_int(table + tile / page_tiles));
        return page * page_stride + static_cast<unsigned>(tile % page_tiles) * kv::tile_pieces(FORMAT, D);
    };
    const auto ask_keys = [&](uint4 (&into)[DEEP][WIDE], int batch, int chunk, unsigned places) {
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            const int unit = column_group * WIDE + i;
            const uint4* from = pages + __shfl_sync(ALL, places, unit, 32) + batch * (KEY_DEEP * kv::STEP);
#pragma unroll
            for (int j = 0; j < KEY_DEEP; ++j) load_16_ahead(into[j][i], from + j * kv::STEP, chunk + unit < end);
        }
    };
    const auto ask_values = [&](uint4 (&into)[DEEP][WIDE], int batch, int chunk, unsigned places) {
#pragma unroll
        for (int j = 0; j < DEEP; ++j) {
            const int step = batch * DEEP + j, tile = step / PARTS;
            const uint4* from = pages + value_offset + __shfl_sync(ALL, places, tile, 32) + step % PARTS * kv::STEP;
#pragma unroll
            for (int i = 0; i < WIDE; ++i) {
                const int slice = column_group * WIDE + i;
                const bool wanted = (slice < SLICES) & (chunk + tile < end);
                load_16_ahead(into[j][i], from + slice * (PARTS * kv::STEP), wanted);
            }
        }
    };

    uint4 ahead[2][DEEP][WIDE] = {};
    unsigned here = place_of(0);
    ask_keys(ahead[0], 0, 0, here);
    Rows::stage(queries, query + first_row * query_stride + kv_head * group * query_head, query_stride, query_head, group,
                first, total);
    __syncthreads();

    const int a_row = row_group * (8 * MT) + m8n8k4::a_row(lane);
    const uint4* const q_row = queries + a_row * Rows::STRIDE + (lane >> 3 & 1) * PIECES;
    const uint4* const p_row = weights + a_row * P_STRIDE;
    const int row_of_lane = row_group * (8 * MT) + m8n8k4::c_row(lane, 0);
    float greatest[MT][2], sum_of_p[MT][2];
    Sums sum[WIDE] = {};
    unsigned odd = 0;  // What was no number: bit 7 of some byte where it was in a key, bits 6 and 5 in the slices of values.
#pragma unroll
    for (int j = 0; j < MT * 2; ++j) {
        greatest[j / 2][j % 2] = minus_infinity();
        sum_of_p[j / 2][j % 2] = 0.0f;
    }

#pragma unroll 1
    for (int chunk = 0; chunk < end; chunk += CHUNK) {
        const unsigned after = place_of(chunk + CHUNK);
        // Scores.
        Sums c[WIDE] = {};
#pragma unroll
        for (int batch = 0; batch < KEY_BATCHES; ++batch) {
            if (batch + 1 < KEY_BATCHES) {
                ask_keys(ahead[(batch + 1) % 2], batch + 1, chunk, here);
            } else {
                ask_values(ahead[0], 0, chunk, here);
            }
#pragma unroll
            for (int j = 0; j < KEY_DEEP; ++j) {
                const uint4 (&pieces)[WIDE] = ahead[batch % 2][j];
                if (FORMAT == kv::E4M3) {
#pragma unroll
                    for (int i = 0; i < WIDE; ++i) {
                        const int tile = chunk + column_group * WIDE + i;
                        const int token = tile * kv::TILE + (lane & 4) * 2 + m8n8k4::b_column(lane);
                        odd |= token < last_token ? kv::not_numbers(pieces[i]) : 0u;
                    }
                }
                multiply(c, pieces, q_row + (batch * KEY_DEEP + j) * 2 * PIECES, Rows::STRIDE);
            }
        }
        float scores[WIDE][MT][4];
        const bool masked = computed + first / group + 1 < chunk * kv::TILE + TOKENS;  // Does some row not see all?
#pragma unroll
        for (int i = 0; i < WIDE; ++i) {
            const int token = (chunk + column_group * WIDE + i) * kv::TILE + first_token(lane);
#pragma unroll
            for (int j = 0; j < MT; ++j) join(scores[i][j], c[i][j], lane, factor);
            if (masked) {
#pragma unroll
                for (int j = 0; j < MT * 4; ++j) {
                    const int row = min(first + j / 4 * 8 + row_of_lane + (j & 2), total - 1);
                    if (token + (j & 1) >= computed + row / group + 1) scores[i][j / 4][j % 4] = minus_infinity();
                }
            }
        }
#pragma unroll
        for (int j = 0; j < MT * 2; ++j) {
            const float* low = scores[0][j / 2] + j % 2 * 2;
            const float* high = scores[1][j / 2] + j % 2 * 2;
            const float of_warp = greatest_of_row(fmaxf(fmaxf(low[0], low[1]), fmaxf(high[0], high[1])));
            if ((lane & 14) == 0) {
                of_groups[(row_of_lane + j / 2 * 8 + j % 2 * 2) * COLUMN_GROUPS + column_group] = of_warp;
            }
        }
        __syncthreads();

        // Softmax.
#pragma unroll
        for (int j = 0; j < MT * 2; ++j) {
            const int row = row_of_lane + j / 2 * 8 + j % 2 * 2;
            const float4 four = *reinterpret_cast<const float4*>(of_groups + row * COLUMN_GROUPS);
            const float before = greatest[j / 2][j % 2];
            const float now = fmaxf(before, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
            greatest[j / 2][j % 2] = now;
            const bool none = now == minus_infinity();
            const float shrink = none ? 1.0f : exp2_fast(before - now);
            const float base = none ? 0.0f : now;
            float& of_lane = sum_of_p[j / 2][j % 2];
            of_lane *= shrink;
#pragma unroll
            for (int i = 0; i < WIDE; ++i) {
#pragma unroll
                for (int k = 0; k < 4; ++k) sum[i][j / 2][k / 2 * 4 + j % 2 * 2 + k % 2] *= shrink;
                const float* pair = scores[i][j / 2] + j % 2 * 2;
                const float p[2] = {exp2_fast(pair[0] - base), exp2_fast(pair[1] - base)};
                of_lane += p[0] + p[1];
                const int token = (column_group * WIDE + i) * kv::TILE + first_token(lane);
                reinterpret_cast<unsigned*>(weights + row * P_STRIDE)[token / 2] = float2_to_half2(p[0], p[1]);
            }
        }
        __syncthreads();

        // Values.
        const int left_tokens = last_token - chunk * kv::TILE;
#pragma unroll
        for (int batch = 0; batch < VALUE_BATCHES; ++batch) {
            if (batch + 1 < VALUE_BATCHES) {
                ask_values(ahead[(batch + 1) % 2], batch + 1, chunk, here);
            } else {
                ask_keys(ahead[0], 0, chunk + CHUNK, after);
            }
#pragma unroll
            for (int j = 0; j < DEEP; ++j) {
                const int step = batch * DEEP + j;
                uint4 pieces[WIDE];
#pragma unroll
                for (int i = 0; i < WIDE; ++i) {
                    pieces[i] = ahead[batch % 2][j][i];
                    if (left_tokens < TOKENS) {
                        pieces[i] = kv::first_tokens<FORMAT>(pieces[i], left_tokens - step * kv::run(FORMAT));
                    }
                    if (FORMAT == kv::E4M3) odd |= kv::not_numbers(pieces[i]) >> (i + 1);
                }
                multiply(sum, pieces, p_row + step * PIECES, P_STRIDE);
            }
        }
        here = after;
    }

    // The sum of P of each row: over lanes, then over warps in their order.
    const bool odd_keys = FORMAT == kv::E4M3 && __ballot_sync(ALL, (odd & 0x80808080u) != 0) != 0;
#pragma unroll
    for (int j = 0; j < MT * 2; ++j) {
        const float of_warp = odd_keys ? no_number() : sum_of_row(sum_of_p[j / 2][j % 2]);
        if ((lane & 14) == 0) {
            of_groups[(row_of_lane + j / 2 * 8 + j % 2 * 2) * COLUMN_GROUPS + column_group] = of_warp;
        }
    }
    __syncthreads();
    const float by_value = kv::fold(FORMAT) * (FORMAT == kv::AUTO ? 1.0f : load_float(v_scale));
#pragma unroll
    for (int i = 0; i < WIDE; ++i) {
        const int slice = column_group * WIDE + i;
        const unsigned odd_lanes = FORMAT == kv::E4M3 ? __ballot_sync(ALL, (odd & 0x80808080u >> (i + 1)) != 0) : 0;
        if (slice >= SLICES) continue;
#pragma unroll
        for (int j = 0; j < MT * 2; ++j) {
            const int in_block = row_of_lane + j / 2 * 8 + j % 2 * 2, row = first + in_block;
            if (row >= total) continue;
            const int token = row / group, head = kv_head * group + row - token * group;
            const float* of_row = of_groups + in_block * COLUMN_GROUPS;
            const float times = by_value / (of_row[0] + of_row[1] + of_row[2] + of_row[3]);
            const bool sees = computed + token + 1 > 0;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int loader = m8n8k4::quad_pair(lane) * 4 + (lane & 2) + half * 16;
                const float* c = sum[i][j / 2] + half * 4 + j % 2 * 2;
                const float x = odd_lanes >> loader & 1 ? no_number() : c[0] * times;
                const float y = odd_lanes >> (loader + 1) & 1 ? no_number() : c[1] * times;
                const int element = slice * 32 + m8n8k4::quad_pair(lane) * 8 + half * 4 + (lane & 2);
                store_4(out + (first_row + token) * out_stride + head * out_head + element,
                        sees ? float2_to_half2(x, y) : 0u);
            }
        }
    }
}
