// Puts the partitions of a sequence together: out = sum of 2^(greatest - greatest of all) O over the same sum of P.
//
// A thread block has one query head of one token: four groups of threads, a thread four elements of the head; group g takes
// partitions g, g + 4, ... in order, and the groups are added in order. What it reads is as attention/decode.cu leaves it;
// the number of partitions follows from the sequence's length as there.
//
// grid = (tokens, query heads). Tokens beyond the last sequence stay as they are; one that sees nothing becomes zero.
#include "attention/partitions.cuh"
#include "ptx/exponent.cuh"
#include "ptx/half.cuh"
#include "ptx/memory.cuh"
#include "ptx/scattered.cuh"
#include "ptx/stream.cuh"

namespace {

constexpr int LANES = D / 4;
constexpr int GROUPS = THREADS / LANES;
constexpr unsigned ALL = 0xFFFFFFFFu;
static_assert(GROUPS == 4 && THREADS % 32 == 0, "as the order of sums says");

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_reduce(unsigned short* out, const float* partials, const float* states, const int* lengths,
                     const int* starts, int sequences, int tokens, int most, int least, long long out_stride,
                     long long out_head) {
    __shared__ float share[MOST];  // of each partition in the result
    __shared__ float4 of_groups[GROUPS][LANES];
    const int token = blockIdx.x, head = blockIdx.y, heads = gridDim.y;
    const int lane = threadIdx.x % 32, column = threadIdx.x % LANES * 4, group = threadIdx.x / LANES;

    int sequence = 0;  // ends at or before this token: so many
    for (int first = 0; first < sequences; first += 32) {
        const bool before = first + lane < sequences && load_int(starts + first + lane + 1) <= token;
        sequence += __popc(__ballot_sync(ALL, before));
    }
    if (sequence >= sequences) return;
    const int length = max(load_int(lengths + sequence), 0);
    const int after = load_int(starts + sequence + 1) - 1 - token;
    const int parts = partitions_of(length, most, least);
    const long long step = static_cast<long long>(tokens) * heads;  // from partition to partition
    const long long place = static_cast<long long>(token) * heads + head;

    if (threadIdx.x < 32) {
        float greatest = __uint_as_float(0xFF800000u);
        for (int part = lane; part < parts; part += 32) {
            greatest = fmaxf(greatest, load_float(states + 2 * (place + part * step)));
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            greatest = fmaxf(greatest, __shfl_xor_sync(ALL, greatest, distance));
        }
        float total = 0.0f;
        for (int part = lane; part < parts; part += 32) {
            const float2 state = load_8(states + 2 * (place + part * step));
            share[part] = exp2_fast(state.x - greatest);
            total += share[part] * state.y;
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(ALL, total, distance);
        for (int part = lane; part < parts; part += 32) share[part] /= total;
    }
    __syncthreads();

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float* from = partials + place * D + column;
#pragma unroll 4
    for (int part = group; part < parts; part += GROUPS) {
        const uint4 bits = load_16(from + part * step * D);
        const float by = share[part];
        sum = make_float4(sum.x + by * __uint_as_float(bits.x), sum.y + by * __uint_as_float(bits.y),
                          sum.z + by * __uint_as_float(bits.z), sum.w + by * __uint_as_float(bits.w));
    }
    of_groups[group][column / 4] = sum;
    __syncthreads();
    if (group != 0) return;
    for (int i = 1; i < GROUPS; ++i) sum = add(sum, of_groups[i][column / 4]);
    unsigned short* to = out + token * out_stride + head * out_head + column;
    const bool sees = length - after > 0;
    store_4(to, sees ? float2_to_half2(sum.x, sum.y) : 0u);
    store_4(to + 2, sees ? float2_to_half2(sum.z, sum.w) : 0u);
}
