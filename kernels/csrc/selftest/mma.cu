// One m8n8k4 a quad-pair, loaded and stored through the lane maps: what the maps say is what the card does.
//
// a [4][8][4], b [4][4][8] FP16, c [4][8][8] FP32: product q is that of quad-pair q. One warp.
#include "mma/m8n8k4.cuh"
#include "ptx/memory.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) mma_lanes(float* c, const unsigned short* a, const unsigned short* b) {
    static_assert(THREADS == 32, "one warp");
    const int lane = threadIdx.x;
    const int product = m8n8k4::quad_pair(lane);
    unsigned a_registers[2], b_registers[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned short* row = a + (product * 8 + m8n8k4::a_row(lane)) * 4;
        const unsigned short* column = b + product * 32 + m8n8k4::b_column(lane);
        a_registers[i] = load_2(row + 2 * i) | static_cast<unsigned>(load_2(row + 2 * i + 1)) << 16;
        b_registers[i] = load_2(column + 16 * i) | static_cast<unsigned>(load_2(column + 16 * i + 8)) << 16;
    }
    float sum[8] = {};
    mma_m8n8k4(sum, a_registers, b_registers);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        store_float(c + (product * 8 + m8n8k4::c_row(lane, i)) * 8 + m8n8k4::c_column(lane, i), sum[i]);
    }
}
