// What the two kernels of a prefill share: chunks of 64 tokens of a sequence, and the workspace between the kernels.
//
// The workspace holds fragments of m8n8k4 in the order in which lanes load them, in pieces of 16 bytes (8 halves):
//
//     keys    [chunk][key head][keys | queries | keys transposed]          1024 pieces each
//     values  [chunk][value head][within | solved | values | gates]        512, 512, 1024 and 48 pieces
//
// A matrix [rows][8 * steps] lies as [rows / 8][steps][8 rows]. keys and queries are [token][key], of length 1; transposed
// they are [key][token]. within is q_i . k_j and decayed from j to i, 0 where j > i; solved is (1 + A)^-1 with A_ij =
// beta_i k_i . k_j decayed, j < i; both [token][token], tiles right of the diagonal are not written. values are plain,
// [token][HEAD]. gates are 64 floats of the logarithm of the decay since the chunk began, 64 of beta, and 64 of
// the logarithm of the decay from there to the chunk's end.
// Tokens beyond the sequence's last have keys, queries and beta of 0 and leave the decay as it is.
#pragma once
#include "gdn/state.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/cached.cuh"
#include "ptx/half.cuh"
#include "ptx/quad.cuh"
#include "ptx/stream.cuh"

constexpr int CHUNK = 64;
constexpr int HISTORY = 3;  // inputs of the convolution before a token
constexpr unsigned ALL_LANES = 0xFFFFFFFFu;

namespace chunk {

constexpr int HEAD_STEPS = HEAD / 8;    // pieces of a row
constexpr int STEPS = CHUNK / 8;
constexpr int WIDE = CHUNK * HEAD / 8;  // pieces of [64][128]
constexpr int SQUARE = CHUNK * CHUNK / 8;

constexpr int QUERIES = WIDE, TRANSPOSED = 2 * WIDE, KEY_PIECES = 3 * WIDE;
constexpr int SOLVED = SQUARE, VALUES = 2 * SQUARE, GATES = VALUES + WIDE, VALUE_PIECES = GATES + 3 * CHUNK * 4 / 16;

__device__ __forceinline__ int of_wide(int row, int step) { return (row / 8 * HEAD_STEPS + step) * 8 + row % 8; }
__device__ __forceinline__ int of_square(int row, int step) { return (row / 8 * STEPS + step) * 8 + row % 8; }

__device__ __forceinline__ int chunks_of(int rows) { return rows > 0 ? (rows + CHUNK - 1) / CHUNK : 0; }

// The rows of sequence s; none where the bounds make no sense.
__device__ __forceinline__ int rows_of(const int* query_start_loc, int s, int tokens) {
    const int first = query_start_loc[s];
    return first < 0 ? 0 : min(query_start_loc[s + 1], tokens) - first;
}

__device__ __forceinline__ uint4 halves(const float (&x)[8]) {
    return make_uint4(float2_to_half2(x[0], x[1]), float2_to_half2(x[2], x[3]), float2_to_half2(x[4], x[5]),
                      float2_to_half2(x[6], x[7]));
}

// c += A B for two steps of four: eight halves of a row of A and of a column of B.
__device__ __forceinline__ void multiply(float (&c)[8], const uint4& a, const uint4& b) {
    const unsigned a_low[2] = {a.x, a.y}, a_high[2] = {a.z, a.w}, b_low[2] = {b.x, b.y}, b_high[2] = {b.z, b.w};
    mma_m8n8k4(c, a_low, b_low);
    mma_m8n8k4(c, a_high, b_high);
}

}  // namespace chunk
