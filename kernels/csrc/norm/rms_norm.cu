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
    Vector<WIDTH> held[VECTORS];
    Packed<WIDTH> gains[VECTORS];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        if (column < hidden) {
            // Asked for now, so that a lone row does not wait for memory a second time after the sum.
            gains[i] = load_packed<WIDTH>(weight, column);
            held[i] = load_halves<WIDTH>(x + row * x_stride, column);
            if constexpr (RESIDUAL != 0) {
                Vector<WIDTH> carried;
                if constexpr (RESIDUAL == 1) {
                    carried = load_halves<WIDTH>(static_cast<const unsigned short*>(residual) + row * residual_stride, column);
                } else {
                    carried = load_floats<WIDTH>(static_cast<const float*>(residual) + row * residual_stride, column);
                }
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) held[i].at[e] += carried.at[e];
                store_floats<WIDTH>(residual_out + row * hidden, column, held[i]);
            }
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) squares = fmaf(held[i].at[e], held[i].at[e], squares);
        }
    }
    __shared__ float partial[THREADS / 32];
    const float scale = rsqrtf(sum_block<THREADS>(squares, partial) / static_cast<float>(hidden) + eps);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int column = (i * THREADS + threadIdx.x) * WIDTH;
        if (column < hidden) {
            const Vector<WIDTH> gain = unpack<WIDTH>(gains[i]);
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) held[i].at[e] *= scale * (1.0f + gain.at[e]);
            store_halves<WIDTH>(out + row * hidden, column, held[i]);
        }
    }
}
