// Gemma-style RMS norm of FP16 rows, alone or after adding a residual:
//
//     h = x (+ residual)      out = h / sqrt(mean(h^2) + eps) * (1 + weight)      residual_out = h
//
// A block owns ROWS rows and keeps them in registers between the sum and the scaling, so each byte moves once. One row
// is right where rows are few. Where they are many, a second one in flight fills the waits of the first, and both share
// a barrier and the weight. Which rows share a block changes no bit: each is summed by all threads in the same order.
// All arithmetic is FP32 and out is rounded once. The new residual is written as FP32: upstream's layer does so for FP16
// models, since a residual stream outgrows FP16's range. The first layer's residual is the FP16 embedding.
//
// RESIDUAL: 0 none, 1 FP16, 2 FP32. WIDTH: 8 elements an access, rows then being multiples of 8 elements and of 16
// bytes; or 1 for any row. A thread holds VECTORS vectors of a row: hidden <= THREADS * VECTORS * WIDTH.
// grid = ceil(rows / ROWS).
#include "norm/reduce.cuh"
#include "ptx/vector.cuh"

// Several rows would take more registers than four blocks of 320 threads an SM leave room for.
constexpr int BLOCKS_AN_SM = ROWS == 1 || THREADS < 64 ? 1 : 1280 / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AN_SM)
    rms_norm(unsigned short* out, float* residual_out, const unsigned short* x, const void* residual,
             const unsigned short* weight, int rows, int hidden, long long x_stride, long long residual_stride, float eps) {
    const int first = blockIdx.x * ROWS;
    // Everything is asked for before anything is used, without branches between: a block then waits for memory once.
    // Of the weight only the prefetch comes first, as the assembler puts off a load whose value is used so late. Lanes
    // beyond the row's end read its start, and rows beyond the last read that one; they add and store nothing.
    Packed<WIDTH> own[ROWS][VECTORS];
    Vector<WIDTH> held[ROWS][VECTORS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const long long row = ROWS == 1 ? first : min(first + r, rows - 1);
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int column = (i * THREADS + threadIdx.x) * WIDTH;
            const int read = column < hidden ? column : 0;
            own[r][i] = load_packed<WIDTH>(x + row * x_stride, read);
            if constexpr (RESIDUAL == 1) {
                held[r][i] = load_halves<WIDTH>(static_cast<const unsigned short*>(residual) + row * residual_stride, read);
            } else if constexpr (RESIDUAL == 2) {
                held[r][i] = load_floats<WIDTH>(static_cast<const float*>(residual) + row * residual_stride, read);
            }
            if (r == 0) prefetch_l2(weight + read);
        }
    }
    float squares[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const long long row = first + r;
        squares[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int column = (i * THREADS + threadIdx.x) * WIDTH;
            Vector<WIDTH> value = unpack<WIDTH>(own[r][i]);
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                if constexpr (RESIDUAL != 0) value.at[e] = held[r][i].at[e] += value.at[e];
                sum = fmaf(value.at[e], value.at[e], sum);
            }
            if (column < hidden) {
                squares[r] += sum;
                if constexpr (RESIDUAL != 0) {
                    if (ROWS == 1 || row < rows) store_floats<WIDTH>(residual_out + row * hidden, column, held[r][i]);
                }
            }
        }
    }
    const unsigned zero = static_cast<unsigned>(hidden) >> 31;
    __shared__ float partial[ROWS][THREADS / 32];
    sum_block<THREADS>(squares, partial);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) squares[r] = rsqrtf(__fdividef(squares[r], static_cast<float>(hidden)) + eps);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        const Vector<WIDTH> gain = load_halves<WIDTH>(weight, column < hidden ? column : 0);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const long long row = first + r;
            if constexpr (RESIDUAL == 0) {
                held[r][i] = unpack<WIDTH>(anew<WIDTH>(own[r][i], zero));
            }
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) held[r][i].at[e] *= squares[r] * (1.0f + gain.at[e]);
            if (column < hidden && (ROWS == 1 || row < rows)) store_halves<WIDTH>(out + row * hidden, column, held[r][i]);
        }
    }
}
