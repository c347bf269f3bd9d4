// Dense layer with FP8 (E4M3) weights and FP16 activations: out[M, N] = x[M, K] * W[N, K]^T, FP32 accumulation.
//
// The weights are the B operand of m8n8k4. A warp's four products take four different blocks of 8 columns, so a warp owns
// NT tiles of 32 columns and a lane owns one column of each: its 16-byte load is 16 consecutive K of its own column, four
// B fragments once the bytes are shifted to halves. Weights thus go from memory to the tensor core through registers
// alone, 512 contiguous bytes a warp and step. The source asks for DEPTH steps before it uses the DEPTH before them; the
// assembler moves half of those loads to just before their use (kernels/NOTES.md has what was measured of it). Single loads
// in a ring do worse: they share the six scoreboard barriers, and a wait for one is a wait for all of its barrier.
// pack/dense.py owns the order:
//
//     weights [tile][K block of 128][step of 16][lane][16 bytes], lane -> column 8 * quad-pair + b_column(lane),
//     and in each 4-byte word of k 0..3 the bytes are k 0, 2, 1, 3 (even bytes give B register 0, odd ones register 1)
//
// Activations are the A operand, MT tiles of 8 rows, the same for the four products; the WN warps of one K part share a
// chunk of them in shared memory. Rows that do not exist are zero there: they cost tensor work, which is idle, because
// memory bounds this kernel up to M of about 32, and latency and tensor cores together only after that.
//
// K is cut into WK * SPLIT parts of whole blocks: WK warps of a thread block take one each, and SPLIT thread blocks share
// a tile through `partials`; the last of them to finish adds up. The order of sums is that of dense/sum.cuh, so a row's
// result depends on the number of parts and on nothing else: not on M, and not on the other constants.
//
// Each tile has its scales in a row of `scales`: ratios[blocks], parts[blocks], columns[32]. The accumulators are kept in
// units of the current block's scale, so at each block they are multiplied by its ratio, s[k - 1] / s[k]; a part ends with
// its last block's s[k] and a column with its own scale. Checkpoints with scales of 128 x 128 blocks have columns of one,
// checkpoints with a scale for each channel have ratios and parts of one. E4M3_FOLD is in one of them.
//
// SILU 1: tiles alternate between gate and up; out[M, N] = silu(gate) * up.
//
// grid = (ceil(M / (8 MT)), ceil(tiles / (NT WN)), SPLIT). K and `stride` (of x, in elements) are multiples of 8, x is on
// a 16-byte boundary. With SPLIT > 1: partials has (blocks of x and y) * SPLIT * WN * NT * MT KiB, counters (blocks of x
// and y) ints that are zero before and after.
#include "dense/activations.cuh"
#include "dense/sum.cuh"
#include "dequant/e4m3.cuh"
#include "mma/m8n8k4.cuh"
#include "ptx/half.cuh"
#include "ptx/memory.cuh"
#include "ptx/stream.cuh"

namespace {

constexpr int BLOCK = 128;  // K of a scale
constexpr int STEPS = BLOCK / 16;
constexpr int STEP_BYTES = 512;
constexpr int ROUND = 2 * DEPTH > CHUNK / 8 ? 2 * DEPTH : CHUNK / 8;  // steps until all buffers are at their start again
constexpr int PARTS = WK * SPLIT;

using Staging = Activations<8 * MT, CHUNK, 32 * WN>;

// The accumulators of a pass in pieces of four, [row tile][column tile][2]; a slot is what one warp has.
constexpr int ROWS = MT / PASSES;
constexpr int PIECES = ROWS * NT * 2;
constexpr int SLOT = PIECES * 32;

constexpr int STAGED_BYTES = WK * 2 * Staging::BUFFER * 16;
constexpr int SUMMED_BYTES = WK * WN * SLOT * 16;
static_assert(SHARED == (STAGED_BYTES > SUMMED_BYTES ? STAGED_BYTES : SUMMED_BYTES), "as the table computes it");
static_assert(THREADS == 32 * WN * WK && WK <= 15, "a barrier for each K part");
static_assert(STEPS % ROUND == 0 && ROUND % (2 * DEPTH) == 0 && ROUND % (CHUNK / 8) == 0, "whole rounds in a block");
static_assert(MT % PASSES == 0 && (!SILU || NT % 2 == 0), "gate and up lie in one warp");

__device__ __forceinline__ void store_pair(unsigned short* row, int column, int n, float lo, float hi) {
    if (n % 2 == 0) {
        store_4(row + column, float2_to_half2(lo, hi));
    } else {
        store_2(row + column, float_to_half(lo));
        if (column + 1 < n) store_2(row + column + 1, float_to_half(hi));
    }
}

__device__ __forceinline__ float silu_times(float gate, float up) { return __fdividef(gate, 1.0f + __expf(-gate)) * up; }

__device__ __forceinline__ int scales_of_tile(int blocks) { return 2 * blocks + 32; }

// A piece times the scales of its two columns.
__device__ __forceinline__ float4 scaled(float4 piece, const float* columns) {
    const float lo = load_float(columns), hi = load_float(columns + 1);
    return make_float4(piece.x * lo, piece.y * hi, piece.z * lo, piece.w * hi);
}

// Writes the rows of one pass. sum(i) is piece i of the thread block's WN slots; a piece is two neighbouring columns of
// two rows, `row` and `row + 2`.
template <typename Sum>
__device__ __forceinline__ void write(unsigned short* out, const float* scales, int blocks, int pass, int m, int n,
                                      Sum sum) {
    constexpr int TILES = SILU ? 2 : 1;  // that make one tile of output
    for (int i = threadIdx.x; i < WN * SLOT / TILES; i += THREADS) {
        const int lane = i % 32;
        const int half = i / 32 % 2;
        const int tile = i / 64 * TILES;  // of this thread block: [along N][row tile][column tile]
        const int row = 8 * (blockIdx.x * MT + pass * ROWS + tile / NT % ROWS) + m8n8k4::c_row(lane, 0);
        const int packed = (blockIdx.y * WN + tile / (NT * ROWS)) * NT + tile % NT;
        const int within = 8 * m8n8k4::quad_pair(lane) + m8n8k4::c_column(lane, 4 * half);
        const int column = packed / TILES * 32 + within;
        if (column >= n || row >= m) continue;

        const int piece = (tile * 2 + half) * 32 + lane;
        const float* scale = scales + packed * scales_of_tile(blocks) + 2 * blocks + within;
        float4 value = scaled(sum(piece), scale);
        if constexpr (SILU) {
            const float4 up = scaled(sum(piece + 64), scale + scales_of_tile(blocks));
            value = make_float4(silu_times(value.x, up.x), silu_times(value.y, up.y), silu_times(value.z, up.z),
                                silu_times(value.w, up.w));
        }
        unsigned short* to = out + static_cast<long long>(row) * n;
        store_pair(to, column, n, value.x, value.y);
        if (row + 2 < m) store_pair(to + 2 * n, column, n, value.z, value.w);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    w8a16(unsigned short* out, const unsigned short* x, const unsigned char* weights, const float* scales,
          float4* partials, int* counters, int m, int n, int k, int tiles, int blocks, long long stride) {
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % 32;
    const int along_n = threadIdx.x / 32 % WN;
    const int along_k = threadIdx.x / 32 / WN;
    const int part = blockIdx.z * WK + along_k;
    const int first = part * blocks / PARTS;
    const int last = (part + 1) * blocks / PARTS;

    // A tile past the end reads the last one again, and stores nothing.
    const int first_tile = (blockIdx.y * WN + along_n) * NT;
    const unsigned char* stream[NT];
    const float* scale[NT];  // of the current block: its ratio
    uint4 ahead[2][NT][DEPTH];
#pragma unroll
    for (int t = 0; t < NT; ++t) {
        const int tile = min(first_tile + t, tiles - 1);
        stream[t] = weights + (static_cast<long long>(tile) * blocks + first) * (STEPS * STEP_BYTES) + lane * 16;
        scale[t] = scales + tile * scales_of_tile(blocks) + first;
    }
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
#pragma unroll
        for (int t = 0; t < NT; ++t) {
            ahead[0][t][i] = uint4{};
            load_16_ahead(ahead[0][t][i], stream[t] + i * STEP_BYTES, first < last);
        }
    }

    const int first_row = blockIdx.x * (8 * MT);
    Staging staging(x + first_row * stride, stride, min(m - first_row, 8 * MT), first * BLOCK, min(k, last * BLOCK),
                    shared + along_k * (2 * Staging::BUFFER), threadIdx.x % (32 * WN), m8n8k4::a_row(lane));
    staging.load();
    staging.wait(1 + along_k);
    staging.store(0);
    staging.load();
    staging.wait(1 + along_k);

    float sum[MT][NT][8] = {};
    float unit[NT];
#pragma unroll
    for (int t = 0; t < NT; ++t) unit[t] = 1.0f;
    for (int block = first; block < last; ++block) {
#pragma unroll
        for (int i = 0; i < MT * NT * 8; ++i) sum[i / (8 * NT)][i / 8 % NT][i % 8] *= unit[i / 8 % NT];
        if (block + 1 < last) {
#pragma unroll
            for (int t = 0; t < NT; ++t) unit[t] = load_float(++scale[t]);
        }
#pragma unroll 1
        for (int round = 0; round < STEPS / ROUND; ++round) {
            const bool more = round + 1 < STEPS / ROUND || block + 1 < last;
#pragma unroll
            for (int step = 0; step < ROUND; ++step) {
                const int buffer = step / (CHUNK / 16) % 2;
                if (step % DEPTH == 0) {
#pragma unroll
                    for (int i = 0; i < DEPTH; ++i) {
#pragma unroll
                        for (int t = 0; t < NT; ++t) {
                            load_16_ahead(ahead[step / DEPTH % 2 ^ 1][t][i], stream[t] + (step + DEPTH + i) * STEP_BYTES,
                                          step + DEPTH < ROUND || more);
                        }
                    }
                }
                if (step % (CHUNK / 16) == 0) {
                    staging.store(buffer ^ 1);
                    staging.load();
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned b[NT][2][2];
#pragma unroll
                    for (int t = 0; t < NT; ++t) {
                        const uint4& words = ahead[step / DEPTH % 2][t][step % DEPTH];
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const unsigned word = half ? (i ? words.w : words.z) : (i ? words.y : words.x);
                            b[t][i][0] = e4m3_even(word);
                            b[t][i][1] = e4m3_odd(word);
                        }
                    }
#pragma unroll
                    for (int row = 0; row < MT; ++row) {
                        const uint4 piece = staging.piece(buffer, 8 * row, step % (CHUNK / 16) * 2 + half);
                        const unsigned a[2][2] = {{piece.x, piece.y}, {piece.z, piece.w}};
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
#pragma unroll
                            for (int t = 0; t < NT; ++t) mma_m8n8k4(sum[row][t], a[i], b[t][i]);
                        }
                    }
                }
                if ((step + 1) % (CHUNK / 16) == 0) staging.wait(1 + along_k);
            }
#pragma unroll
            for (int t = 0; t < NT; ++t) stream[t] += ROUND * STEP_BYTES;
        }
    }

    // K parts differ by one block at most. All wait equally often, because racecheck orders accesses by the number of waits
    // before them: where the numbers differ it reports the sums below, which two barriers of the whole block set apart.
    if (last - first < (blocks + PARTS - 1) / PARTS) {
        for (int chunk = 0; chunk < BLOCK / CHUNK; ++chunk) staging.wait(1 + along_k);
    }

#pragma unroll
    for (int t = 0; t < NT; ++t) unit[t] = first < last ? load_float(scale[t] + blocks) : 0.0f;
#pragma unroll
    for (int i = 0; i < MT * NT * 8; ++i) sum[i / (8 * NT)][i / 8 % NT][i % 8] *= unit[i / 8 % NT];

    float4* slots = reinterpret_cast<float4*>(shared);
    const auto sum_in_block = [slots](int piece) { return sum_of_block<WK>(slots + piece, WN * SLOT); };
    const int group = blockIdx.y * gridDim.x + blockIdx.x;
    float4* of_group = partials + static_cast<long long>(group) * (SPLIT * PASSES * WN * SLOT);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        // The activations, or the sums of the pass before, have been read.
        __syncthreads();
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            const float* c = sum[pass * ROWS + piece / 2 / NT][piece / 2 % NT] + piece % 2 * 4;
            slots[(along_k * WN + along_n) * SLOT + piece * 32 + lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
        __syncthreads();
        if constexpr (SPLIT > 1) {
            float4* mine = of_group + (blockIdx.z * PASSES + pass) * (WN * SLOT);
            for (int i = threadIdx.x; i < WN * SLOT; i += THREADS) mine[i] = sum_in_block(i);
        } else {
            write(out, scales, blocks, pass, m, n, sum_in_block);
        }
    }
    if constexpr (SPLIT > 1) {
        if (!last_of<SPLIT>(counters + group)) return;
        for (int pass = 0; pass < PASSES; ++pass) {
            const float4* slot = of_group + pass * (WN * SLOT);
            write(out, scales, blocks, pass, m, n,
                  [slot](int piece) { return sum_of_grid<SPLIT>(slot + piece, PASSES * WN * SLOT); });
        }
    }
}
