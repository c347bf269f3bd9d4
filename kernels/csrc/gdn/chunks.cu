// First kernel of a prefill: all that chunks of 64 tokens need and that does not hang on the state, every chunk alone.
//
//     inputs   convolution, norm and gates of the chunk's tokens            -> keys, queries, values, gates
//     products q_i . k_j and k_i . k_j of the key head, on tensor cores
//     heads    for each value head: both products decayed                  -> within
//              (1 + A)^-1 of the strictly lower triangle A, in FP32         -> solved
//
// grid = (chunks at a time, key_heads), the first of which is chunk `first_chunk` of all sequences in turn. A block finds its
// sequence by counting chunks; those beyond the last do nothing. Layouts are those of gdn/decode.cu; the workspace's is in
// gdn/chunk.cuh. A sequence whose slot is none, or padding, is left to gdn/prefill.cu.
#include "gdn/chunk.cuh"
#include "gdn/convolution.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int MOST_GROUP = 8;       // value heads on one key head
constexpr int ROW = HEAD / 8 + 1;   // pieces of a row in shared memory, one of them padding
constexpr int WIDTH = CHUNK + 1;    // floats of a row of a triangle there
constexpr int BLOCK = 16;           // of the triangle, solved by substitution; larger ones are put together
static_assert(WARPS == CHUNK / 8 && HISTORY == TAPS - 1, "a warp has eight tokens");

// Two halves of one memory, one after the other.
union Shared {
    uint4 rows[2][CHUNK * ROW];  // queries and keys
    struct {
        float lower[CHUNK][WIDTH], inverse[CHUNK][WIDTH];
    } solve;
};

// The inputs of a sequence, from its first row on; what was before the first is in the history, or zero.
struct Inputs {
    const unsigned short* mixed;
    const unsigned short* history;
    long long mixed_token, conv_column;
    bool carried;

    __device__ __forceinline__ uint2 of(int row, int channel) const {
        if (row >= 0) return load_8(mixed + row * mixed_token + channel);
        return carried ? load_8(history + (HISTORY + row) * conv_column + channel) : make_uint2(0, 0);
    }
};

// Convolves eight rows of four channels a lane and gives each to `put`; rows beyond `count` are zero.
template <typename Put>
__device__ __forceinline__ void convolve_rows(const Inputs& inputs, const Taps& taps, int channel, int row, int count,
                                              const Put& put) {
    uint2 window[HISTORY + 8];
#pragma unroll
    for (int i = 0; i < HISTORY + 8; ++i) {
        window[i] = i - HISTORY < count ? inputs.of(row - HISTORY + i, channel) : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint2 own[TAPS] = {window[i], window[i + 1], window[i + 2], window[i + 3]};
        put(i, i < count ? convolve(own, taps) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
}

// A sum of logarithms of decays, and what rounding took from it: where gates forget much it is large, and the difference of
// two must keep its digits.
struct Sum {
    float high, low;
};
__device__ __forceinline__ Sum add(const Sum& a, const Sum& b) {
    const float high = a.high + b.high, of_b = high - a.high;
    return {high, (a.high - (high - of_b)) + (b.high - of_b) + (a.low + b.low)};
}
__device__ __forceinline__ float difference(const Sum& a, const Sum& b) { return (a.high - b.high) + (a.low - b.low); }

// The sums of two tokens in each lane of a warp, from the chunk's first token on.
__device__ __forceinline__ void add_up(const float (&decays)[2], int lane, Sum (&sums)[2]) {
    Sum before = {0.0f, 0.0f}, sum = add({decays[0], 0.0f}, {decays[1], 0.0f});
#pragma unroll
    for (int distance = 1; distance <= 32; distance *= 2) {
        // At last the sum of all lanes before this one.
        const int from = lane - (distance == 32 ? 1 : distance);
        const Sum other = {__shfl_sync(ALL_LANES, sum.high, from & 31, 32), __shfl_sync(ALL_LANES, sum.low, from & 31, 32)};
        if (from < 0) continue;
        if (distance == 32) before = other;
        else sum = add(other, sum);
    }
    sums[0] = add(before, {decays[0], 0.0f}), sums[1] = sum;
}

__device__ __forceinline__ float log_decay(float a, float a_log, float dt_bias) {
    constexpr float LINEAR_FROM = 20.0f;
    const float x = a + dt_bias;
    return -expf(a_log) * (x > LINEAR_FROM ? x : log1pf(expf(x)));
}

// inverse <- (1 + lower)^-1 of the blocks on the diagonal, a column in each of 64 threads, and zero right of them as far as
// `join` reads.
__device__ __forceinline__ void solve_diagonal(float (*lower)[WIDTH], float (*inverse)[WIDTH]) {
    const int corner = threadIdx.x / BLOCK * BLOCK, column = threadIdx.x % BLOCK;
    float x[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
        float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (int l = 0; l < i; ++l) sum = fmaf(-lower[corner + i][corner + l], x[l], sum);
        x[i] = sum;
        inverse[corner + i][corner + column] = sum;
        if (corner / BLOCK % 2 == 1) inverse[corner - BLOCK + i][corner + column] = 0.0f;
    }
}

// Puts blocks of `size` together to blocks of twice that: the lower left one is -inverse22 (lower21 inverse11).
template <int size>
__device__ __forceinline__ void join(float (*lower)[WIDTH], float (*inverse)[WIDTH]) {
    constexpr int EACH = CHUNK / 2 * size / THREADS;
    float sums[EACH];
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + threadIdx.x, corner = at / (size * size) * 2 * size;
            const int row = corner + size + at / size % size, column = corner + at % size;
            float sum = 0.0f;
#pragma unroll 4
            for (int l = 0; l < size; ++l) {
                sum = turn == 0 ? fmaf(lower[row][corner + l], inverse[corner + l][column], sum)
                                : fmaf(-inverse[row][corner + size + l], lower[corner + size + l][column], sum);
            }
            sums[i] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int at = i * THREADS + threadIdx.x, corner = at / (size * size) * 2 * size;
            const int row = corner + size + at / size % size, column = corner + at % size;
            (turn == 0 ? lower : inverse)[row][column] = sums[i];
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gdn_chunks(uint4* key_work, uint4* value_work, const unsigned short* mixed_qkv, const unsigned short* b,
               const unsigned short* a, const unsigned short* conv_state, const unsigned short* conv_weight,
               const float* a_log, const void* dt_bias, const int* query_start_loc, const int* state_indices,
               const unsigned char* has_initial_state, int sequences, int key_heads, int value_heads, int slots,
               int wide_bias, int tokens, int first_chunk, long long mixed_token, long long b_token, long long a_token, long long conv_slot,
               long long conv_column) {
    int sequence = 0, number = first_chunk + blockIdx.x, rows = 0;
    for (; sequence < sequences; ++sequence) {
        rows = chunk::rows_of(query_start_loc, sequence, tokens);
        if (number < chunk::chunks_of(rows)) break;
        number -= chunk::chunks_of(rows);
    }
    if (sequence == sequences) return;
    const int slot = state_indices[sequence];
    if (slot < 0 || slot >= slots) return;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_head = blockIdx.y, group = value_heads / key_heads;
    const int begin = number * CHUNK, count = min(CHUNK, rows - begin), keys = key_heads * HEAD;
    const long long first = query_start_loc[sequence];
    const Inputs inputs = {mixed_qkv + first * mixed_token, conv_state + slot * conv_slot, mixed_token, conv_column,
                           has_initial_state[sequence] != 0};
    uint4* const key_own = key_work + (static_cast<long long>(blockIdx.x) * key_heads + key_head) * chunk::KEY_PIECES;
    uint4* const value_own =
        value_work + (static_cast<long long>(blockIdx.x) * value_heads + key_head * group) * chunk::VALUE_PIECES;

    // Inputs: each warp convolves its eight tokens, four channels a lane.
    __shared__ Shared shared_memory;
    __shared__ Sum since[MOST_GROUP][CHUNK];
    __shared__ float beta[MOST_GROUP][CHUNK];
    const int row = begin + 8 * warp, own = count - 8 * warp;
#pragma unroll
    for (int kind = 0; kind < 2; ++kind) {
        const int channel = (kind * key_heads + key_head) * HEAD + lane * CHANNELS_A_LANE;
        uint4* const staged = shared_memory.rows[kind];
        uint4* const left = key_own + (kind == 0 ? chunk::QUERIES : 0);
        convolve_rows(inputs, load_taps(conv_weight, channel), channel, row, own, [&](int i, float4 x) {
            const float4 unit = normed(x, 1.0f);
            const uint2 pair = make_uint2(float2_to_half2(unit.x, unit.y), float2_to_half2(unit.z, unit.w));
            reinterpret_cast<uint2*>(staged + (8 * warp + i) * ROW)[lane] = pair;
            store_8(reinterpret_cast<uint2*>(left + chunk::of_wide(8 * warp + i, lane / 2)) + lane % 2, pair);
        });
    }
    for (int head = 0; head < group; ++head) {
        const int channel = 2 * keys + (key_head * group + head) * HEAD + lane * CHANNELS_A_LANE;
        uint4* const left = value_own + head * chunk::VALUE_PIECES + chunk::VALUES;
        convolve_rows(inputs, load_taps(conv_weight, channel), channel, row, own, [&](int i, float4 x) {
            store_8(reinterpret_cast<uint2*>(left + (8 * warp + i) * chunk::HEAD_STEPS) + lane,
                    make_uint2(float2_to_half2(x.x, x.y), float2_to_half2(x.z, x.w)));
        });
    }
    if (warp < group) {
        const int head = key_head * group + warp;
        const float rate = load_float(a_log + head);
        const float bias = wide_bias ? load_float(static_cast<const float*>(dt_bias) + head)
                                     : half_to_float(load_2(static_cast<const unsigned short*>(dt_bias) + head));
        float decays[2], writes[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = 2 * lane + i;
            const bool real = token < count;
            const long long at = first + begin + (real ? token : 0);
            const float opened = half_to_float(load_2(a + at * a_token + head));
            decays[i] = real ? log_decay(opened, rate, bias) : 0.0f;
            writes[i] = real ? __fdividef(1.0f, 1.0f + expf(-half_to_float(load_2(b + at * b_token + head)))) : 0.0f;
        }
        Sum sums[2];
        add_up(decays, lane, sums);
        const Sum whole = {__shfl_sync(ALL_LANES, sums[1].high, 31, 32), __shfl_sync(ALL_LANES, sums[1].low, 31, 32)};
        float* const left = reinterpret_cast<float*>(value_own + warp * chunk::VALUE_PIECES + chunk::GATES) + 2 * lane;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            since[warp][2 * lane + i] = sums[i], beta[warp][2 * lane + i] = writes[i];
            store_4(left + i, __float_as_uint(sums[i].high));
            store_4(left + CHUNK + i, __float_as_uint(writes[i]));
            store_4(left + 2 * CHUNK + i, __float_as_uint(difference(whole, sums[i])));
        }
    }
    __syncthreads();

    // Products: a warp has the rows of its tokens and the columns up to them. Quad-pairs: two tiles of columns, times queries
    // and keys as rows.
    const int tile = m8n8k4::quad_pair(lane) & 1, of_keys = m8n8k4::quad_pair(lane) >> 1;
    float products[CHUNK / 16][8] = {};
    const uint4* const rows_own = shared_memory.rows[of_keys] + (8 * warp + m8n8k4::a_row(lane)) * ROW;
    const uint4* const columns = shared_memory.rows[1] + (8 * tile + m8n8k4::b_column(lane)) * ROW;
#pragma unroll 4
    for (int step = 0; step < chunk::HEAD_STEPS; ++step) {
        const uint4 piece = rows_own[step];
#pragma unroll
        for (int pair = 0; pair < CHUNK / 16; ++pair) {
            if (2 * pair <= warp) chunk::multiply(products[pair], piece, columns[16 * pair * ROW + step]);
        }
    }
    for (int i = threadIdx.x; i < chunk::WIDE; i += THREADS) {
        const int key = i / 64 * 8 + i % 8, step = i / 8 % 8;
        const unsigned short* const column = reinterpret_cast<const unsigned short*>(shared_memory.rows[1]) + key;
        unsigned words[4];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const unsigned later = column[(8 * step + 2 * word + 1) * ROW * 8];
            words[word] = column[(8 * step + 2 * word) * ROW * 8] | later << 16;
        }
        store_16(key_own + chunk::TRANSPOSED + i, make_uint4(words[0], words[1], words[2], words[3]));
    }
    __syncthreads();

    // Heads: each decays the products its own way.
    for (int head = 0; head < group; ++head) {
        uint4* const left = value_own + head * chunk::VALUE_PIECES;
        auto& solve = shared_memory.solve;
#pragma unroll
        for (int pair = 0; pair < CHUNK / 16; ++pair) {
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const int at = 8 * warp + m8n8k4::c_row(lane, i), column = 16 * pair + 8 * tile + m8n8k4::c_column(lane, i);
                if (2 * pair + tile > warp) continue;
                float decayed[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const float decay = expf(fminf(difference(since[head][at], since[head][column + j]), 0.0f));
                    decayed[j] = column + j < at + (1 - of_keys) ? products[pair][i + j] * decay : 0.0f;
                }
                if (of_keys) {
                    solve.lower[at][column] = beta[head][at] * decayed[0];
                    solve.lower[at][column + 1] = beta[head][at] * decayed[1];
                } else {
                    unsigned* const piece = reinterpret_cast<unsigned*>(left + chunk::of_square(at, column / 8));
                    store_4(piece + column % 8 / 2, float2_to_half2(decayed[0], decayed[1]));
                }
            }
        }
        __syncthreads();
        if (threadIdx.x < CHUNK) solve_diagonal(solve.lower, solve.inverse);
        __syncthreads();
        join<BLOCK>(solve.lower, solve.inverse);
        join<2 * BLOCK>(solve.lower, solve.inverse);
        for (int i = threadIdx.x; i < chunk::SQUARE; i += THREADS) {
            const int at = i / 64 * 8 + i % 8, step = i / 8 % 8;
            if (step > i / 64) continue;
            float x[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = solve.inverse[at][8 * step + j];
            store_16(left + chunk::SOLVED + i, chunk::halves(x));
        }
        __syncthreads();
    }
}
