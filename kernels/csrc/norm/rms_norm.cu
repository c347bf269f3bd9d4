// Gemma-style RMS norm of FP16 rows, alone or after adding a residual:
//
//     h = x (+ residual)      out = h / sqrt(mean(h^2) + eps) * (1 + weight)      residual_out = h
//
// One block owns one row and keeps it in registers between the sum and the scaling, so each byte moves once. All
// arithmetic is FP32 and out is rounded once. The new residual is written as FP32: upstream's layer does so for FP16
// models, since a residual stream outgrows FP16's range. The first layer's residual is the FP16 embedding.
//
// RESIDUAL: 0 none, 1 FP16, 2 FP32. WIDTH: 8 elements an access, rows then being multiples of 8 elements and of 16
// bytes; or 1 for any row. A thread holds VECTORS vectors: hidden <= THREADS * VECTORS * WIDTH. grid = rows.
#include "norm/reduce.cuh"
#include "ptx/vector.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(unsigned short* out, float* residual_out, const unsigned short* x, const void* residual,
             const unsigned short* weight, int hidden, long long x_stride, long long residual_stride, float eps) {
    const long long row = blockIdx.x;
    // Everything is asked for before anything is used, without branches between: a lone row then waits for memory once.
    // Of the weight only the prefetch comes first, as the assembler puts off a load whose value is used so late. Lanes
    // beyond the row's end read its start, add nothing and store nothing.
    Packed<WIDTH> own[VECTORS];
    Vector<WIDTH> held[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        const int read = column < hidden ? column : 0;
        own[i] = load_packed<WIDTH>(x + row * x_stride, read);
        if constexpr (RESIDUAL == 1) {
            held[i] = load_halves<WIDTH>(static_cast<const unsigned short*>(residual) + row * residual_stride, read);
        } else if constexpr (RESIDUAL == 2) {
            held[i] = load_floats<WIDTH>(static_cast<const float*>(residual) + row * residual_stride, read);
        }
        prefetch_l2(weight + read);
    }
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        const Vector<WIDTH> value = unpack<WIDTH>(own[i]);
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) {
            held[i].at[e] = RESIDUAL == 0 ? value.at[e] : held[i].at[e] + value.at[e];
            sum = fmaf(held[i].at[e], held[i].at[e], sum);
        }
        if (column < hidden) {
            squares += sum;
            if constexpr (RESIDUAL != 0) store_floats<WIDTH>(residual_out + row * hidden, column, held[i]);
        }
    }
    __shared__ float partial[THREADS / 32];
    const float mean = __fdividef(sum_block<THREADS>(squares, partial), static_cast<float>(hidden));
    const float scale = rsqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        const Vector<WIDTH> gain = load_halves<WIDTH>(weight, column < hidden ? column : 0);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) held[i].at[e] *= scale * (1.0f + gain.at[e]);
        if (column < hidden) store_halves<WIDTH>(out + row * hidden, column, held[i]);
    }
}
