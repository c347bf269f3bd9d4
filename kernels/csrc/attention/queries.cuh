// Query rows of one sequence and KV head in shared memory, as A fragments: row r is query row r / group, head r % group.
//
// A row is followed by 16 bytes of padding, so that the four or eight rows of a phase of a 16-byte access have distinct banks.
#pragma once
#include "ptx/memory.cuh"

template <int rows, int head, int threads>
struct Queries {
    static constexpr int PIECES = head / 8;  // of 16 bytes
    static constexpr int STRIDE = PIECES + 1;
    static constexpr int BYTES = rows * STRIDE * 16;

    // Copies rows `first` to `first + rows` of `total`; those beyond are zero.
    static __device__ __forceinline__ void stage(uint4* to, const unsigned short* query, long long token_stride,
                                                 long long head_stride, int group, int first, int total) {
        for (int i = threadIdx.x; i < rows * PIECES; i += threads) {
            const int row = first + i / PIECES;
            uint4 piece = make_uint4(0, 0, 0, 0);
            if (row < total) {
                const int token = row / group;
                piece = load_16(query + token * token_stride + (row - token * group) * head_stride + i % PIECES * 8);
            }
            to[i / PIECES * STRIDE + i % PIECES] = piece;
        }
    }
};
