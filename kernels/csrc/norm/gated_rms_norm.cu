// RMS norm of each head, then the gate (the output of a gated delta net):
//
//     out = x / sqrt(mean(x^2) + eps) * weight * silu(z)
//
// LANES lanes own one head of LANES * 8 elements, each with one 16-byte access a tensor; there is no shared memory. z is
// a slice of a wider projection, hence the strides (elements). out is [tokens, heads, LANES * 8], packed.
// tokens * heads < 2^31. grid = ceil(tokens * heads / (THREADS / LANES)).
#include "norm/reduce.cuh"
#include "ptx/vector.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_rms_norm(unsigned short* out, const unsigned short* x, const unsigned short* z, const unsigned short* weight,
                   int tokens, int heads, long long x_token, long long x_head, long long z_token, long long z_head,
                   float eps) {
    constexpr int HEAD = LANES * 8;
    const int rows = tokens * heads;
    const int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    // A group without a row still takes part in the exchange of lanes, on the last row's data, and stores nothing.
    const int read = row < rows ? row : rows - 1;
    const long long token = read / heads;
    const int head = read % heads;
    const int column = threadIdx.x % LANES * 8;

    Vector<8> value = load_halves<8>(x + token * x_token + head * x_head, column);
    const Vector<8> gate = load_halves<8>(z + token * z_token + head * z_head, column);
    const Vector<8> gain = load_halves<8>(weight, column);
    float squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) squares = fmaf(value.at[e], value.at[e], squares);
    const float scale = rsqrtf(sum_lanes<LANES>(squares) * (1.0f / HEAD) + eps);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const float silu = __fdividef(gate.at[e], 1.0f + __expf(-gate.at[e]));
        value.at[e] *= scale * gain.at[e] * silu;
    }
    if (row < rows) store_halves<8>(out + static_cast<long long>(row) * HEAD, column, value);
}
