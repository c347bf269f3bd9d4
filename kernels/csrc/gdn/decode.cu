// One token a sequence through the convolution and the recurrence of a gated delta net, in one pass over the state:
//
//     q, k, v = silu(causal convolution of mixed_qkv and the last TAPS - 1 inputs); q, k to length 1, q times HEAD ** -0.5
//     write   = beta * (v - decay * S k)
//     out     = decay * S q + write * (k . q)          (the new state's product with q, without reading it again)
//     S       = decay * S + write k^T
//
// mixed_qkv is [tokens, q | k | v] with value_heads / key_heads value heads on one key head. conv_state is [slots,
// columns, channels], ssm_state [slots, value_heads, HEAD, HEAD] (values, keys). A block owns COLUMNS value columns of a
// head: grid = (HEAD / COLUMNS, value_heads, tokens). It asks for its state before anything else that hangs on the slot,
// and computes q, k and v while that is on its way: warp 0 the query, warp 1 the key, warp 2 its values, warp 3 the gates.
//
// All blocks of a key head need its inputs in conv_state, which one of them moves on: the last to have read them, which
// `tickets` int32[2 * tokens * key_heads] tells. They are zero before and after. A negative state index is padding: the
// block writes zeros to `out` and touches nothing else. One that is no slot gives NaN.
#include "gdn/convolution.cuh"
#include "gdn/state.cuh"

constexpr int COLUMNS_AT_ONCE = THREADS / LANES;
constexpr int PASSES = COLUMNS / COLUMNS_AT_ONCE;
static_assert(THREADS >= 128 && COLUMNS % COLUMNS_AT_ONCE == 0 && COLUMNS % CHANNELS_A_LANE == 0 && COLUMNS <= HEAD);

enum Role { QUERY, KEY, VALUE, GATES };  // of a block's first four warps

// What a warp needs of the convolution: the first of its lanes' four channels, and whether this lane has any.
struct Channels {
    int first;
    bool own;
};

__device__ __forceinline__ Channels channels_of(int warp, int lane, int key_heads, int key_head, int value) {
    const int keys = key_heads * HEAD;
    const int at = lane * CHANNELS_A_LANE;
    if (warp == QUERY) return {key_head * HEAD + at, true};
    if (warp == KEY) return {keys + key_head * HEAD + at, true};
    return {2 * keys + value + at % COLUMNS, at < COLUMNS};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gdn_decode(unsigned short* out, const unsigned short* mixed_qkv, const unsigned short* b, const unsigned short* a,
               unsigned short* conv_state, const unsigned short* conv_weight, float* ssm_state, const float* a_log,
               const void* dt_bias, const int* state_indices, int* tickets, int key_heads, int value_heads, int slots,
               int wide_bias, long long mixed_token, long long b_token, long long a_token, long long conv_slot,
               long long conv_column, long long ssm_slot) {
    const int token = blockIdx.z, head = blockIdx.y, column = blockIdx.x * COLUMNS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = threadIdx.x % LANES;
    const int group = value_heads / key_heads, key_head = head / group;
    const int slot = state_indices[token];
    unsigned short* const results = out + (static_cast<long long>(token) * value_heads + head) * HEAD + column;
    if (slot < 0 || slot >= slots) {
        if (threadIdx.x < COLUMNS) store_2(results + threadIdx.x, slot < 0 ? 0 : 0x7FFF);
        return;
    }

    // The state is on its way while q, k and v are computed.
    float* const states = ssm_state + slot * ssm_slot + (head * HEAD + column + threadIdx.x / LANES) * HEAD;
    Share state[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; ++i) state[i] = load_state(states + i * COLUMNS_AT_ONCE * HEAD, part);

    __shared__ float4 query_of[HEAD / 4], key_of[HEAD / 4], value_of[COLUMNS / 4];
    __shared__ Gates gates_of;
    const Channels channels = channels_of(warp, lane, key_heads, key_head, head * HEAD + column);
    unsigned short* const history = conv_state + slot * conv_slot + channels.first;
    uint2 window[TAPS];
    if (warp < GATES) {
        const Taps taps = load_taps(conv_weight, channels.first);
        window[TAPS - 1] = load_8(mixed_qkv + token * mixed_token + channels.first);
#pragma unroll
        for (int tap = 0; tap < TAPS - 1; ++tap) window[tap] = load_8_here(history + tap * conv_column);
        const float4 x = convolve(window, taps);
        if (warp == QUERY) query_of[lane] = normed(x, QUERY_SCALE);
        if (warp == KEY) key_of[lane] = normed(x, 1.0f);
        if (warp == VALUE && channels.own) value_of[lane] = x;
    } else if (threadIdx.x == GATES * 32) {
        gates_of = load_gates(a + token * a_token, b + token * b_token, a_log, dt_bias, wide_bias, head);
    }
    __syncthreads();

    // What this block read of the query and key channels has arrived: the barrier waited for what came of it.
    int* const ticket = tickets + 2 * (token * key_heads + key_head) + warp;
    int before = 0;
    if (warp <= KEY && lane == 0) before = atomicAdd(ticket, 1);

    const Share key = load_shared(key_of, part), query = load_shared(query_of, part);
    const Gates open = gates_of;
    const float meeting = sum_lanes<LANES>(dot(key, query));
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
        const int own = i * COLUMNS_AT_ONCE + threadIdx.x / LANES;
        const Step done = step(state[i], key, query, open, reinterpret_cast<const float*>(value_of)[own], meeting);
        store_state(states + i * COLUMNS_AT_ONCE * HEAD, part, state[i]);
        if (part == 0) store_2(results + own, float_to_half(done.result));
    }

    __shared__ bool last[2];
    if (warp <= KEY && lane == 0) {
        last[warp] = before == group * static_cast<int>(gridDim.x) - 1;
        if (last[warp]) *ticket = 0;
    }
    __syncwarp();
    if (warp == VALUE ? channels.own : warp <= KEY && last[warp]) {
#pragma unroll
        for (int tap = 0; tap < TAPS - 1; ++tap) store_8(history + tap * conv_column, window[tap + 1]);
    }
}
