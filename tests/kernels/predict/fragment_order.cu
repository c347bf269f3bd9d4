// A dense layer as the V100 kernels do it whose times are published (kernels/MODEL.md): a thread block owns 32 columns,
// its WARPS warps cut K among themselves, weights come in fragment order and activations straight from L1. No shared
// memory in the main loop; one barrier, before the sums over the warps. Only the predicting model runs it.
//
// FORMAT 8: E4M3 codes, 512 bytes a step of 16 along K. FORMAT 4: E2M1 codes, 256 bytes a step, and an E4M3 scale a lane.
// TILES row tiles of 8; CHAINS accumulators that take turns along K; BATCH steps are loaded at a time.
#include "dequant/e2m1.cuh"
#include "dequant/e4m3.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/half.cuh"
#include "ptx/memory.cuh"

namespace {

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = FORMAT / 2;  // of codes, a lane and step
constexpr int STEP_BYTES = 128 * WORDS;

struct Step {
    unsigned words[WORDS];
    unsigned scale;
};

__device__ __forceinline__ Step load_step(const unsigned char* codes, const unsigned char* scales) {
    Step step;
    if constexpr (FORMAT == 8) {
        const uint4 found = load_16(codes);
        step.words[0] = found.x, step.words[1] = found.y, step.words[2] = found.z, step.words[3] = found.w;
        step.scale = 0;
    } else {
        asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(step.words[0]), "=r"(step.words[1]) : "l"(codes));
        asm("ld.global.nc.u8 %0, [%1];" : "=r"(step.scale) : "l"(scales));
    }
    return step;
}

// B fragment `i` of a step's four. E2M1 times its scale is exact in FP16: code * 2^-14 times scale * 2^7.
__device__ __forceinline__ void decode(const Step& step, unsigned scale, int i, unsigned (&b)[2]) {
    if constexpr (FORMAT == 8) {
        b[0] = e4m3_even(step.words[i]);
        b[1] = e4m3_odd(step.words[i]);
    } else {
        const unsigned word = step.words[i / 2];
        b[0] = half2_multiply(i % 2 ? e2m1_pair<2>(word) : e2m1_pair<0>(word), scale);
        b[1] = half2_multiply(i % 2 ? e2m1_pair<3>(word) : e2m1_pair<1>(word), scale);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    k(unsigned short* out, const unsigned short* x, const unsigned char* codes, const unsigned char* scales, int m, int n,
      int k) {
    __shared__ float sums[WARPS][TILES][8][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int steps = k / 16, first = warp * steps / WARPS, last = (warp + 1) * steps / WARPS;
    const int row = m8n8k4::a_row(lane);
    const long long at = static_cast<long long>(blockIdx.x) * steps + first;
    codes += at * STEP_BYTES + lane * (4 * WORDS);
    scales += at * 32 + lane;
    x += row * k + first * 16;
    float sum[TILES][CHAINS][8] = {};
#pragma unroll 1
    for (int start = first; start < last; start += BATCH) {
        Step step[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (start + i < last) step[i] = load_step(codes + i * STEP_BYTES, scales + i * 32);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (start + i >= last) break;
            // The scale times 2^7: 448 is still finite.
            const unsigned scale = half2_multiply((step[i].scale & 0x7F) * 0x00800080u, 0x78007800u);
            uint4 piece[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    piece[t][half] = uint4{};
                    if (8 * t + row < m) piece[t][half] = load_16(x + 8 * t * k + i * 16 + half * 8);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                unsigned b[2];
                decode(step[i], scale, j, b);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    const uint4& p = piece[t][j / 2];
                    const unsigned a[2] = {j % 2 ? p.z : p.x, j % 2 ? p.w : p.y};
                    mma_m8n8k4(sum[t][j % CHAINS], a, b);
                }
            }
        }
        codes += BATCH * STEP_BYTES;
        scales += BATCH * 32;
        x += BATCH * 16;
    }
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float total = sum[t][0][i];
#pragma unroll
            for (int c = 1; c < CHAINS; ++c) total += sum[t][c][i];
            sums[warp][t][i][lane] = total;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 256; i += THREADS) {
        const int t = i / 256, of = i % 32, number = i / 32 % 8;
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total += sums[w][t][number][of];
        const int column = blockIdx.x * 32 + 8 * m8n8k4::quad_pair(of) + m8n8k4::c_column(of, number);
        const int which = 8 * t + m8n8k4::c_row(of, number);
        if (which < m) store_2(out + static_cast<long long>(which) * n + column, float_to_half(total));
    }
}
