// Second kernel of a prefill: the state of a value head from chunk to chunk, after gdn/chunks.cu.
//
// A block owns 16 value columns of a head; grid = (HEAD / 16, value_heads, sequences). Its part of the state stays in
// registers, as the FP32 sums of m8n8k4, from the first chunk to the last. Of a chunk with the decay g_i since it began:
//
//     reads   K S and Q S                                  S as halves, times a power of two
//     sides   y_i = beta_i (v_i - exp(g_i) (K S)_i)        as halves, times a power of two
//     writes  W = (1 + A)^-1 y
//     out     exp(g_i) (Q S)_i + (within W)_i, times HEAD ** -0.5
//     state   S <- exp(g_64) S + sum_i exp(g_64 - g_i) W_i k_i^T
//
// The powers of two keep what is rounded to halves near 1, however small gates make it. A warp has eight tokens of a chunk,
// and 16 keys of the state. Fragments that are one warp's come from the workspace to registers; S, y and W are shared.
//
// The workspace holds `held` chunks from `first_chunk` on, counted over all sequences in turn: a launch takes those alone, and
// the state goes through ssm_state, in FP32, from one launch to the next. With a sequence's last chunk the block also moves
// the history of its channels on. A negative state index is padding: zeros, and nothing else is
// touched. One that is no slot gives NaN. Layouts are those of gdn/decode.cu.
#include "gdn/chunk.cuh"

constexpr int COLUMNS = 16;
constexpr int WARPS = THREADS / 32;
constexpr int STATE_ROW = HEAD / 8 + 1;   // pieces, one of them padding
constexpr int TOKEN_ROW = CHUNK / 8 + 1;
constexpr int AHEAD = 8;                  // pieces of keys and queries on their way
constexpr int SPREAD_AHEAD = 4;           // of transposed keys
static_assert(WARPS == CHUNK / 8 && WARPS * 16 == HEAD);

// A power of two that brings `greatest` near 1, and its inverse. Of what is no number it makes no number.
struct Scale {
    float up, down;
};
__device__ __forceinline__ Scale scale_of(float greatest) {
    const int exponent = min(max(static_cast<int>(__float_as_uint(greatest) >> 23), 27), 227);
    return {__uint_as_float((254 - exponent) << 23), __uint_as_float(exponent << 23)};
}

// The greatest of all threads' values; `held` is one float a warp, free until the second barrier from here.
__device__ __forceinline__ float greatest_of_block(float value, float* held) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    if (threadIdx.x % 32 == 0) held[threadIdx.x / 32] = value;
    __syncthreads();
    float greatest = held[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) greatest = fmaxf(greatest, held[warp]);
    return greatest;
}

// The sums of two quad-pairs that each had every second step of a product.
__device__ __forceinline__ void join_steps(float (&c)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] += __shfl_xor_sync(ALL_LANES, c[i], 8);
}

// Four channels' last inputs, of which the oldest may be of the history itself.
__device__ __forceinline__ void move_history(unsigned short* history, const unsigned short* mixed, long long mixed_token,
                                             long long conv_column, int rows, bool carried) {
    uint2 last[HISTORY];
#pragma unroll
    for (int i = 0; i < HISTORY; ++i) {
        const int row = rows - HISTORY + i;
        if (row >= 0) last[i] = load_8_here(mixed + row * mixed_token);
        else last[i] = carried ? load_8_here(history + (HISTORY + row) * conv_column) : make_uint2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < HISTORY; ++i) store_8(history + i * conv_column, last[i]);
}

// Two blocks an SM: twelve heads have 96 blocks for 80 SMs, and none is to wait for a second wave.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gdn_prefill(unsigned short* out, const uint4* key_work, const uint4* value_work, const unsigned short* mixed_qkv,
                unsigned short* conv_state, float* ssm_state, const int* query_start_loc, const int* state_indices,
                const unsigned char* has_initial_state, int key_heads, int value_heads, int slots, int tokens,
                int first_chunk, int held, long long mixed_token, long long conv_slot, long long conv_column, long long ssm_slot) {
    const int sequence = blockIdx.z, head = blockIdx.y, column = blockIdx.x * COLUMNS, warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32, slot = state_indices[sequence], group = value_heads / key_heads;
    const int rows = chunk::rows_of(query_start_loc, sequence, tokens), key_head = head / group;
    if (rows <= 0) return;
    const long long first = query_start_loc[sequence], width = static_cast<long long>(value_heads) * HEAD;
    unsigned short* const results = out + first * width + head * HEAD + column;
    if (slot < 0 || slot >= slots) {
        if (first_chunk != 0) return;
        for (int i = threadIdx.x; i < rows * COLUMNS; i += THREADS) {
            store_2(results + i / COLUMNS * width + i % COLUMNS, slot < 0 ? 0 : 0x7FFF);
        }
        return;
    }
    int before = 0;
    for (int s = 0; s < sequence; ++s) before += chunk::chunks_of(chunk::rows_of(query_start_loc, s, tokens));
    const int chunks = chunk::chunks_of(rows), own_first = max(first_chunk - before, 0);
    const int own_end = min(first_chunk + held - before, chunks);
    if (own_first >= own_end) return;

    // A lane's places. Quad-pairs: two tiles of value columns, times the two of whatever else there are.
    const int tile = m8n8k4::quad_pair(lane) & 1, other = m8n8k4::quad_pair(lane) >> 1;
    const int a_row = m8n8k4::a_row(lane), b_column = m8n8k4::b_column(lane);
    const bool carried = has_initial_state[sequence] != 0;
    float* const states = ssm_state + slot * ssm_slot + static_cast<long long>(head * HEAD + column + 8 * tile) * HEAD +
                          16 * warp + 8 * other;
    float state[8] = {};  // values 8 * tile + c_row, keys 16 * warp + 8 * other + c_column
    if (carried || own_first > 0) {
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const uint2 raw = load_8_here(states + m8n8k4::c_row(lane, i) * HEAD + m8n8k4::c_column(lane, i));
            state[i] = __uint_as_float(raw.x), state[i + 1] = __uint_as_float(raw.y);
        }
    }

    __shared__ uint4 shared_state[COLUMNS * STATE_ROW];      // [value][key]
    __shared__ uint4 sides[COLUMNS * TOKEN_ROW];             // [value][token], and so the two below
    __shared__ uint4 writes[COLUMNS * TOKEN_ROW], kept[COLUMNS * TOKEN_ROW];
    __shared__ float greatest[3][WARPS];
#pragma unroll 1
    for (int number = own_first; number < own_end; ++number) {
        const int begin = number * CHUNK;
        const long long place = before + number - first_chunk;
        const uint4* const keys = key_work + (place * key_heads + key_head) * chunk::KEY_PIECES;
        const uint4* const own = value_work + (place * value_heads + head) * chunk::VALUE_PIECES;
        const float* const since = reinterpret_cast<const float*>(own + chunk::GATES);

        // Registers hold one half of what comes from the workspace at a time: each is asked for long before its use.
        uint4 looks[AHEAD], solved[chunk::STEPS / 2], within[chunk::STEPS / 2], spread[SPREAD_AHEAD];
        const uint4* const look = keys + (other ? chunk::QUERIES : 0) + chunk::of_wide(8 * warp + a_row, 0);
#pragma unroll
        for (int step = 0; step < AHEAD; ++step) looks[step] = load_16_l1(look + 8 * step);
        const uint4* const key = keys + chunk::TRANSPOSED + chunk::of_square(16 * warp + 8 * other + b_column, 0);
        unsigned values[4];
        float since_of[2], beta_of[2], until_of[2];
        const unsigned short* const value = reinterpret_cast<const unsigned short*>(own + chunk::VALUES) + column + 8 * tile;
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int token = 8 * warp + m8n8k4::c_row(lane, i);
            values[i / 2] = load_4_l1(value + token * HEAD + m8n8k4::c_column(lane, i));
            if (i >= 4) continue;
            since_of[i / 2] = load_float(since + token), beta_of[i / 2] = load_float(since + CHUNK + token);
            until_of[i / 2] = load_float(since + 2 * CHUNK + token);
        }
        const float whole = load_float(since + CHUNK - 1);

        // The state as halves.
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(state[i]));
        const Scale of_state = scale_of(greatest_of_block(most, greatest[0]));
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            unsigned short* const at = reinterpret_cast<unsigned short*>(
                                           shared_state + (8 * tile + m8n8k4::c_row(lane, i)) * STATE_ROW) +
                                       16 * warp + 8 * other + m8n8k4::c_column(lane, i);
            *reinterpret_cast<unsigned*>(at) = float2_to_half2(state[i] * of_state.up, state[i + 1] * of_state.up);
        }
        __syncthreads();

        // Reads: keys, or queries, of eight tokens times the state.
        float read[8] = {};
#pragma unroll 1
        for (int from = 0; from < chunk::HEAD_STEPS; from += AHEAD) {
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                chunk::multiply(read, looks[i], shared_state[(8 * tile + b_column) * STATE_ROW + from + i]);
                if (from + AHEAD < chunk::HEAD_STEPS) looks[i] = load_16_l1(look + 8 * (from + AHEAD + i));
            }
        }
#pragma unroll
        for (int i = 0; i < chunk::STEPS / 2; ++i) {
            const int step = 2 * i + other, at = chunk::of_square(8 * warp + a_row, step);
            const bool there = step <= warp;
            solved[i] = there ? load_16_l1(own + chunk::SOLVED + at) : make_uint4(0, 0, 0, 0);
        }

        // Sides: in the quad-pairs that have the keys' products.
        most = 0.0f;
        float side[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float2 pair = half2_to_float2(values[i / 2]);
            read[i] *= expf(since_of[i / 2 % 2]) * of_state.down;
            side[i] = beta_of[i / 2 % 2] * ((i % 2 ? pair.y : pair.x) - read[i]);
            if (!other) most = fmaxf(most, fabsf(side[i]));
        }
        const Scale of_sides = scale_of(greatest_of_block(most, greatest[1]));
        if (!other) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int at = (8 * tile + m8n8k4::c_column(lane, i)) * TOKEN_ROW * 8 + 8 * warp + m8n8k4::c_row(lane, i);
                reinterpret_cast<unsigned short*>(sides)[at] = float_to_half(side[i] * of_sides.up);
            }
        }
        __syncthreads();

#pragma unroll
        for (int step = 0; step < SPREAD_AHEAD; ++step) spread[step] = load_16_l1(key + 8 * step);

        // Writes: as they are, and as far as they are kept until the chunk's end.
        float write[8] = {};
#pragma unroll
        for (int i = 0; i < chunk::STEPS / 2; ++i) {
            chunk::multiply(write, solved[i], sides[(8 * tile + b_column) * TOKEN_ROW + 2 * i + other]);
        }
        join_steps(write);
#pragma unroll
        for (int i = 0; i < chunk::STEPS / 2; ++i) {
            const int step = 2 * i + other;
            within[i] = step <= warp ? load_16_l1(own + chunk::of_square(8 * warp + a_row, step)) : make_uint4(0, 0, 0, 0);
        }
        // A scale of their own for those that are kept: a chunk whose last tokens forget leaves little of all of them.
        most = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!other) continue;
            write[i] *= expf(until_of[i / 2 % 2]);
            most = fmaxf(most, fabsf(write[i]));
        }
        const Scale of_kept = scale_of(greatest_of_block(most, greatest[2]));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = (8 * tile + m8n8k4::c_column(lane, i)) * TOKEN_ROW * 8 + 8 * warp + m8n8k4::c_row(lane, i);
            const float put = other ? write[i] * of_kept.up : write[i];
            reinterpret_cast<unsigned short*>(other ? kept : writes)[at] = float_to_half(put);
        }
        __syncthreads();

        // Out: in the quad-pairs that have the queries' products.
        float inside[8] = {};
#pragma unroll
        for (int i = 0; i < chunk::STEPS / 2; ++i) {
            chunk::multiply(inside, within[i], writes[(8 * tile + b_column) * TOKEN_ROW + 2 * i + other]);
        }
        join_steps(inside);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int token = begin + 8 * warp + m8n8k4::c_row(lane, i);
            if (!other || token >= rows) continue;
            store_4(results + token * width + 8 * tile + m8n8k4::c_column(lane, i),
                    float2_to_half2(fmaf(inside[i], of_sides.down, read[i]) * QUERY_SCALE,
                                    fmaf(inside[i + 1], of_sides.down, read[i + 1]) * QUERY_SCALE));
        }

        // State: 16 keys a warp.
        float grown[8] = {};
#pragma unroll
        for (int step = 0; step < chunk::STEPS; ++step) {
            chunk::multiply(grown, kept[(8 * tile + a_row) * TOKEN_ROW + step], spread[step % SPREAD_AHEAD]);
            if (step + SPREAD_AHEAD < chunk::STEPS) {
                spread[step % SPREAD_AHEAD] = load_16_l1(key + 8 * (step + SPREAD_AHEAD));
            }
        }
        const float stays = expf(whole), grows = of_sides.down * of_kept.down;
#pragma unroll
        for (int i = 0; i < 8; ++i) state[i] = fmaf(grown[i], grows, stays * state[i]);
    }

#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        store_8(states + m8n8k4::c_row(lane, i) * HEAD + m8n8k4::c_column(lane, i),
                make_uint2(__float_as_uint(state[i]), __float_as_uint(state[i + 1])));
    }
    // Values' channels by each block, the queries' and the keys' by those of their first value head.
    if (own_end == chunks && threadIdx.x < 3 * COLUMNS / 4) {
        const int kind = threadIdx.x / (COLUMNS / 4), at = column + threadIdx.x % (COLUMNS / 4) * 4;
        const int channel = kind == 0 ? (2 * key_heads + head) * HEAD + at : ((kind - 1) * key_heads + key_head) * HEAD + at;
        if (kind == 0 || head % group == 0) {
            move_history(conv_state + slot * conv_slot + channel, mixed_qkv + first * mixed_token + channel, mixed_token,
                         conv_column, rows, carried);
        }
    }
}
