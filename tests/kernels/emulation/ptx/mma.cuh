// Stands in for csrc/ptx/mma.cuh: four products of a warp, lane maps as PTX's manual gives them for m8n8k4.
#pragma once
#include "ptx/half.cuh"

inline void mma_m8n8k4(float (&c)[8], const unsigned (&a)[2], const unsigned (&b)[2]) {
    static unsigned a_of[1024][2], b_of[1024][2];
    std::memcpy(a_of[threadIdx.x], a, sizeof a);
    std::memcpy(b_of[threadIdx.x], b, sizeof b);
    device::wait_for_warp();
    const int lane = threadIdx.x % 32, warp = threadIdx.x - lane, quad_pair = lane / 4 % 4;
    const auto holder = [&](int index) { return warp + quad_pair * 4 + index % 4 + (index >= 4 ? 16 : 0); };
    for (int i = 0; i < 8; ++i) {
        const int row = holder(lane % 2 + (i & 2) + (lane >= 16 ? 4 : 0));
        const int column = holder((i & 4) + (lane & 2) + (i & 1));
        for (int k = 0; k < 4; ++k) {
            const unsigned short left = a_of[row][k / 2] >> 16 * (k % 2), right = b_of[column][k / 2] >> 16 * (k % 2);
            c[i] += half_to_float(left) * half_to_float(right);
        }
    }
    device::wait_for_warp();
}
