// FP8 weights in fragment order (dense/w8a16.cu) to an FP16 matrix [columns][K], for a library's matrix product:
//
//     out = E4M3 * scale of its block * scale of its column / unit
//
// A warp expands one tile of 32 columns over one K block of 128: 4 KiB in, 8 KiB out, a lane its own column. `unit` is a
// power of two that keeps the FP16 numbers normal; the product is multiplied by it afterwards.
//
// Tiles [first_tile, first_tile + tiles) are expanded; with HALVES 2 they alternate between gate and up, which land
// `half_stride` elements apart. grid = (ceil(blocks / (THREADS / 32)), tiles).
#include "dequant/e4m3.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/half.cuh"
#include "ptx/memory.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    expand(unsigned short* out, const unsigned char* weights, const float* scales, int blocks, int first_tile,
           long long half_stride, float inverse_unit) {
    constexpr int STEPS = 8;  // of 16 along K, in a block
    const int lane = threadIdx.x % 32;
    const int block = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (block >= blocks) return;
    const int tile = first_tile + blockIdx.y;
    const int column = 8 * m8n8k4::quad_pair(lane) + m8n8k4::b_column(lane);

    const unsigned char* from = weights + (static_cast<long long>(tile) * blocks + block) * (STEPS * 512) + lane * 16;
    uint4 codes[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) codes[step] = load_16_once(from + step * 512);

    const float* of_tile = scales + tile * (2 * blocks + 32);
    const float scale = load_float(of_tile + blocks + block) * load_float(of_tile + 2 * blocks + column) * inverse_unit;
    const auto scaled = [scale](unsigned pair) {
        const float2 value = half2_to_float2(pair);
        return float2_to_half2(value.x * scale, value.y * scale);
    };
    const int half = blockIdx.y % HALVES;
    const long long row = blockIdx.y / HALVES * 32 + column;
    unsigned short* to = out + half * half_stride + row * (blocks * 128) + block * 128;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const unsigned words[4] = {codes[step].x, codes[step].y, codes[step].z, codes[step].w};
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            store_16(to + step * 16 + i * 4,
                     make_uint4(scaled(e4m3_even(words[i])), scaled(e4m3_odd(words[i])),
                                scaled(e4m3_even(words[i + 1])), scaled(e4m3_odd(words[i + 1]))));
        }
    }
}
