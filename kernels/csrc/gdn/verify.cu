// Up to ROWS tokens a sequence through a gated delta net, when it is not yet known which of them will be kept.
//
// The state in the slot is the one before the last round's rows. What each of those did to it lies in the slot's log: its
// key, what it wrote and how much it left, so that the rows which were accepted are done again, bit for bit, and none of
// the states between has to be stored. A round then
//
//     1. brings the state up to date by `replayed` rows of the log and stores it, where there are any;
//     2. computes this round's rows on a copy in registers, as decode.cu computes one;
//     3. writes their log over the old one. The state in the slot stays as step 1 left it.
//
// log is FP32 [slots, log_rows <= ROWS, key_heads * HEAD keys | value_heads * HEAD writes | value_heads decays]. A sequence's history
// in conv_state [slots, columns, channels] begins at column `accepted` - 1; it and this round's inputs are written from
// column 0 on. A block owns COLUMNS value columns of a head: grid = (HEAD / COLUMNS, value_heads, sequences).
//
// What several blocks read before one of them writes it is written by the last to have read it, which `tickets` tells:
// int32[sequences][2 * key_heads + value_heads], for the queries' and the keys' inputs (and the log's keys) of each key
// head, and for each value head's decays. They are zero before and after. A negative state index is padding: its rows are
// zeros and nothing else is touched. Rows, slots or counts that cannot be give NaN and touch nothing else either.
#include "gdn/convolution.cuh"
#include "gdn/state.cuh"

constexpr int COLUMNS_AT_ONCE = THREADS / LANES;
constexpr int PASSES = COLUMNS / COLUMNS_AT_ONCE;
constexpr int VALUE_LANES = COLUMNS / CHANNELS_A_LANE;                             // of one row
constexpr int VALUE_ITEMS = (ROWS * VALUE_LANES + THREADS - 1) / THREADS;          // of one thread
constexpr int KEY_ITEMS = (ROWS * HEAD / 4 + THREADS - 1) / THREADS;               // of the log, 16 bytes each
constexpr int WRITE_ITEMS = (ROWS * COLUMNS + THREADS - 1) / THREADS;
constexpr int HISTORY = TAPS - 1;
static_assert(THREADS == 128 && COLUMNS % COLUMNS_AT_ONCE == 0 && COLUMNS <= HEAD && ROWS % 2 == 0 && ROWS <= 32);
static_assert(ROWS * HEAD / 4 % THREADS == 0, "every thread fetches as much of the log's keys");

// What all blocks are told of the layer; as in decode.cu.
struct Layer {
    const unsigned short* mixed;  // at the sequence's first row
    unsigned short* history;      // of the slot, at column 0
    int mixed_token, conv_column, accepted, rows;

    // Four channels' input of a row; of the history, where `row` is negative, down to -HISTORY.
    __device__ __forceinline__ uint2 input(int row, int channel) const {
        const bool old = row < 0;
        const int at = old ? accepted + HISTORY - 1 + row : min(row, rows - 1);
        return load_8_here((old ? history : mixed) + (at * (old ? conv_column : mixed_token) + channel));
    }

    // Moves the history on and puts this round's inputs behind it. Only when nobody else will read it.
    __device__ __forceinline__ void move_history(int channel) const {
        const uint2 middle = input(1 - HISTORY, channel), young = input(2 - HISTORY, channel);
        store_8(history + channel, middle);
        store_8(history + conv_column + channel, young);
#pragma unroll 1
        for (int row = 0; row < rows; ++row) store_8(history + (row + HISTORY - 1) * conv_column + channel, input(row, channel));
    }
};

// What a block keeps of the rows: of the log that it replays, and of this round's.
struct Rows {
    float4 old_key[ROWS][HEAD / 4], key[ROWS][HEAD / 4], query[ROWS][HEAD / 4], value[ROWS][VALUE_LANES];
    float old_write[ROWS][COLUMNS], old_decay[ROWS];
    Gates open[ROWS];
};

// Queries and keys: even warps take the queries, odd ones the keys, each every second row.
struct Heads {
    static constexpr int INPUTS = ROWS - 2 + TAPS;
    uint2 inputs[INPUTS];
    Taps taps;
    int parity;

    __device__ __forceinline__ void fetch(const Layer& layer, const unsigned short* weight, int channel, int warp) {
        parity = warp / 2;
        taps = load_taps(weight, channel);
#pragma unroll
        for (int i = 0; i < INPUTS; ++i) inputs[i] = layer.input(parity - HISTORY + i, channel);
    }

    __device__ __forceinline__ void finish(float4 (*heads)[HEAD / 4], int rows, float scale, int lane) const {
#pragma unroll
        for (int i = 0; i < ROWS; i += 2) {
            if (i + parity >= rows) break;
            const uint2 window[TAPS] = {inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]};
            heads[i + parity][lane] = normed(convolve(window, taps), scale);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    gdn_verify(unsigned short* out, const unsigned short* mixed_qkv, const unsigned short* b, const unsigned short* a,
               unsigned short* conv_state, const unsigned short* conv_weight, float* ssm_state, const float* a_log,
               const void* dt_bias, float* log, const int* query_start_loc, const int* state_indices,
               const int* accepted_rows, const int* replayed_rows, int* tickets, int key_heads, int value_heads, int slots,
               int wide_bias, int tokens, int log_rows, long long mixed_token, long long b_token, long long a_token, long long conv_slot,
               long long conv_column, long long ssm_slot, long long log_slot) {
    const int sequence = blockIdx.z, head = blockIdx.y, column = blockIdx.x * COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = threadIdx.x % LANES;
    const int slot = state_indices[sequence], accepted = accepted_rows[sequence], replayed = replayed_rows[sequence];
    const int first = query_start_loc[sequence], rows = min(query_start_loc[sequence + 1], tokens) - first;
    const int group = value_heads / key_heads, key_head = head / group, keys = key_heads * HEAD;
    const int values = value_heads * HEAD, own = head * HEAD + column;
    unsigned short* const results = out + static_cast<long long>(first) * values + own;
    if (rows <= 0 || first < 0) return;
    const bool possible = slot < slots && rows <= log_rows && accepted >= 1 && accepted <= log_rows &&
                          (replayed == accepted || (replayed == 0 && accepted == 1));
    if (slot < 0 || !possible) {
        for (int i = threadIdx.x; i < rows * COLUMNS; i += THREADS) {
            store_2(results + static_cast<long long>(i / COLUMNS) * values + i % COLUMNS, slot < 0 ? 0 : 0x7FFF);
        }
        return;
    }

    // Everything is asked for before anything is used: the state, its log, and what this round's rows are made of.
    float* const states = ssm_state + slot * ssm_slot + (own + threadIdx.x / LANES) * HEAD;
    Share state[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; ++i) state[i] = load_state(states + i * COLUMNS_AT_ONCE * HEAD, part);
    const int log_row = keys + values + value_heads;
    float* const slot_log = log + slot * log_slot;
    uint4 old_keys[KEY_ITEMS];
#pragma unroll
    for (int i = 0; i < KEY_ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x, row = min(item / (HEAD / 4), log_rows - 1);
        old_keys[i] = load_16_here(slot_log + row * log_row + key_head * HEAD + item % (HEAD / 4) * 4);
    }
    // Holds the loads above it where they are: the assembler would put them behind the addresses of those below.
    __syncwarp();
    const Layer layer = {mixed_qkv + first * mixed_token,
                         conv_state + slot * conv_slot,
                         static_cast<int>(mixed_token),
                         static_cast<int>(conv_column),
                         accepted,
                         rows};
    const int head_channel = (warp % 2 ? keys : 0) + key_head * HEAD + lane * CHANNELS_A_LANE;
    Heads heads;
    heads.fetch(layer, conv_weight, head_channel, warp);

    __shared__ Rows held;
#pragma unroll
    for (int i = 0; i < WRITE_ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x, row = item / COLUMNS;
        if (row < replayed) held.old_write[row][item % COLUMNS] = slot_log[row * log_row + keys + own + item % COLUMNS];
    }
    if (threadIdx.x < replayed) held.old_decay[threadIdx.x] = slot_log[threadIdx.x * log_row + keys + values + head];
#pragma unroll
    for (int i = 0; i < VALUE_ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x, row = item / VALUE_LANES, at = item % VALUE_LANES;
        if (row < rows) {
            const int channel = 2 * keys + own + at * CHANNELS_A_LANE;
            const Taps taps = load_taps(conv_weight, channel);
            const uint2 window[TAPS] = {layer.input(row - 3, channel), layer.input(row - 2, channel),
                                        layer.input(row - 1, channel), layer.input(row, channel)};
            held.value[row][at] = convolve(window, taps);
        }
    }
    if (warp == 3 && lane < rows) {
        const long long token = first + lane;
        held.open[lane] = load_gates(a + token * a_token, b + token * b_token, a_log, dt_bias, wide_bias, head);
    }
    heads.finish(warp % 2 ? held.key : held.query, rows, warp % 2 ? 1.0f : QUERY_SCALE, lane);
#pragma unroll
    for (int i = 0; i < KEY_ITEMS; ++i) {
        const int item = i * THREADS + threadIdx.x;
        held.old_key[item / (HEAD / 4)][item % (HEAD / 4)] =
            make_float4(__uint_as_float(old_keys[i].x), __uint_as_float(old_keys[i].y), __uint_as_float(old_keys[i].z),
                        __uint_as_float(old_keys[i].w));
    }
    __syncthreads();

    // What this block read of what it shares with others has arrived: the barrier waited for what came of it.
    const int readers = static_cast<int>(gridDim.x) * (warp < 2 ? group : 1);
    int* const ticket = tickets + sequence * (2 * key_heads + value_heads) +
                        (warp < 2 ? 2 * key_head + warp : 2 * key_heads + head);
    int before = 0;
    if (warp < 3 && lane == 0) before = atomicAdd(ticket, 1);
    if (warp == 3 && lane < VALUE_LANES) layer.move_history(2 * keys + own + lane * CHANNELS_A_LANE);

#pragma unroll 1
    for (int row = 0; row < replayed; ++row) {
        const Share key = load_shared(held.old_key[row], part);
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            advance(state[i], key, held.old_decay[row], held.old_write[row][i * COLUMNS_AT_ONCE + threadIdx.x / LANES]);
        }
    }
    if (replayed > 0) {
#pragma unroll
        for (int i = 0; i < PASSES; ++i) store_state(states + i * COLUMNS_AT_ONCE * HEAD, part, state[i]);
    }

#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
        const Share key = load_shared(held.key[row], part), query = load_shared(held.query[row], part);
        const Gates open = held.open[row];
        const float meeting = sum_lanes<LANES>(dot(key, query));
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            const int at = i * COLUMNS_AT_ONCE + threadIdx.x / LANES;
            const float value = reinterpret_cast<const float*>(held.value[row])[at];
            const Step done = step(state[i], key, query, open, value, meeting);
            if (part == 0) {
                store_float(slot_log + row * log_row + keys + own + at, done.write);
                store_2(results + static_cast<long long>(row) * values + at, float_to_half(done.result));
            }
        }
    }

    // Warp 0 moves the queries' inputs on, warp 1 the keys', and puts the keys into the log, warp 2 the decays.
    __shared__ bool last[3];
    if (warp < 3 && lane == 0) {
        last[warp] = before == readers - 1;
        if (last[warp]) *ticket = 0;
    }
    __syncwarp();
    if (warp == 3 || !last[warp]) return;
    if (warp < 2) layer.move_history(head_channel);
    if (warp == 1) {
#pragma unroll 1
        for (int row = 0; row < rows; ++row) {
            const float4 four = held.key[row][lane];
            store_16(slot_log + row * log_row + key_head * HEAD + 4 * lane,
                     make_uint4(__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z),
                                __float_as_uint(four.w)));
        }
    }
    if (warp == 2 && lane < rows) store_float(slot_log + lane * log_row + keys + values + head, held.open[lane].decay);
}
