// Where the elements of mma.sync.m8n8k4 (row.col, f32.f16.f16.f32) live. sm70_kernels/lanes.py is its mirror in Python.
//
// A warp makes four independent products C[8x8] += A[8x4] B[4x8], one for each quad-pair (QP): two groups of four lanes.
//
//     lanes  0- 3  4- 7  8-11 12-15   |  16-19 20-23 24-27 28-31
//     QP       0     1     2     3    |     0     1     2     3
//            rows / columns 0 to 3    |   rows / columns 4 to 7
//
// A: a lane has one row, its four halves are k = 0..3 (register 0: k 0 and 1, register 1: k 2 and 3).
// B: a lane has one column, its four halves are k = 0..3 likewise.
// C: a lane has eight floats; for QP 0 the lane that owns row r (down) and column c (across), its register below it:
//
//     r\c    0    1    2    3    4    5    6    7
//      0    T0   T0   T2   T2   T0   T0   T2   T2
//            0    1    0    1    4    5    4    5
//      1    T1   T1   T3   T3   T1   T1   T3   T3
//            0    1    0    1    4    5    4    5
//      2    T0   T0   T2   T2   T0   T0   T2   T2
//            2    3    2    3    6    7    6    7
//      3    T1   T1   T3   T3   T1   T1   T3   T3
//            2    3    2    3    6    7    6    7
//      4-7  the same with T16 to T19
//
// Source: NVIDIA's cutlass, cute/atom/mma_traits_sm70.hpp; the GPU suite compares it with a float product.
#pragma once
#include "ptx/mma.cuh"

namespace m8n8k4 {

// Which of the four products a lane works for.
__device__ constexpr int quad_pair(int lane) { return lane >> 2 & 3; }

// The row of A, or the column of B, whose four k values a lane holds.
__device__ constexpr int a_row(int lane) { return (lane & 3) + ((lane & 16) >> 2); }
__device__ constexpr int b_column(int lane) { return a_row(lane); }

// Row and column of C in a lane's register i of 8.
__device__ constexpr int c_row(int lane, int i) { return (lane & 1) + (i & 2) + ((lane & 16) >> 2); }
__device__ constexpr int c_column(int lane, int i) { return (i & 4) + (lane & 2) + (i & 1); }

}  // namespace m8n8k4
