// The activations of one K chunk in shared memory, double-buffered, one copy for the warps that share a K range.
//
// A row of `chunk` halves is followed by 8 halves of padding: the eight lanes of a phase of a 16-byte access then touch
// distinct banks, whether they read four rows (the fragments) or write along one.
#pragma once
#include "ptx/barrier.cuh"
#include "ptx/memory.cuh"

template <int rows, int chunk, int threads>
struct Activations {
    static constexpr int PIECES = chunk / 8;  // of 16 bytes, in a row
    static constexpr int STRIDE = PIECES + 1;
    static constexpr int BUFFER = rows * STRIDE;
    static constexpr int STEP = threads / PIECES;  // rows that the threads cover at once
    static constexpr int HELD = (rows + STEP - 1) / STEP;
    static_assert(threads % PIECES == 0, "a thread keeps its place along K");

    const unsigned short* from;  // this thread's next piece of its first row
    long long stride;            // of a row, in elements
    int left;                    // of K from that piece on: nothing is read past it
    int count;                   // of rows that exist, from this thread's first on
    uint4* to;                   // this thread's piece of its first row, in the first buffer
    const uint4* fragments;      // first piece of the row that this lane multiplies, in the first buffer
    uint4 held[HELD];

    // x: the block's first row; `count` of its rows exist. The chunks run from k to `end`.
    __device__ __forceinline__ Activations(const unsigned short* x, long long stride, int count, int k, int end,
                                           uint4* buffers, int thread, int row)
        : from(x + thread / PIECES * stride + k + thread % PIECES * 8),
          stride(stride),
          left(end - k - thread % PIECES * 8),
          count(count - thread / PIECES),
          to(buffers + thread / PIECES * STRIDE + thread % PIECES),
          fragments(buffers + row * STRIDE) {
        // Rows that do not exist are zero from here on: they are never written again.
        for (int i = thread; i < 2 * BUFFER; i += threads) buffers[i] = uint4{};
    }
    __device__ __forceinline__ bool exists(int i) const { return i * STEP < count; }

    // Takes the next chunk into registers, zeros where K ends.
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            held[i] = uint4{};
            if (exists(i) && left > 0) held[i] = load_16(from + i * STEP * stride);
        }
        from += chunk;
        left -= chunk;
    }
    __device__ __forceinline__ void store(int buffer) {
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            if (exists(i)) to[buffer * BUFFER + i * STEP * STRIDE] = held[i];
        }
    }
    // What all wrote is seen by all after this, and what they read may be overwritten.
    __device__ __forceinline__ void wait(int barrier) const {
        if constexpr (threads == 32) {
            __syncwarp();
        } else {
            synchronise(barrier, threads);
        }
    }
    // Eight halves along K, two A fragments, of the lane's row in the tile that starts at `row`.
    __device__ __forceinline__ uint4 piece(int buffer, int row, int piece) const {
        return fragments[buffer * BUFFER + row * STRIDE + piece];
    }
};
