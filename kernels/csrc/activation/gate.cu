// out = f(gate) * x for each element: SiLU·mul of a gated MLP, and the sigmoid output gate of full attention.
//
// x and gate are [tokens, heads, width] inside wider tensors, hence the strides (elements); out is packed. SILU: 1 for
// f = silu, 0 for f = sigmoid. WIDTH: 8 elements an access, width and strides then being multiples of 8 and addresses
// of 16 bytes; or 1 for anything. A thread makes one vector, so that every load of a warp is in flight at once.
// grid = (tokens, ceil(heads * width / WIDTH / THREADS)).
#include "ptx/vector.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    gate(unsigned short* out, const unsigned short* x, const unsigned short* gates, int heads, int width, long long x_token,
         long long x_head, long long gate_token, long long gate_head) {
    const long long token = blockIdx.x;
    const int element = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (element >= heads * width) return;
    const int head = element / width;
    const int column = element - head * width;
    Vector<WIDTH> value = load_halves<WIDTH>(x + token * x_token + head * x_head, column);
    const Vector<WIDTH> by = load_halves<WIDTH>(gates + token * gate_token + head * gate_head, column);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
        const float open = __fdividef(1.0f, 1.0f + __expf(-by.at[e]));
        value.at[e] *= SILU ? by.at[e] * open : open;
    }
    store_halves<WIDTH>(out + token * heads * width, element, value);
}
