// How a sequence's context is cut into partitions, one a thread block: from lengths that only the device knows, alike in
// the kernel that attends and in the one that adds up.
#pragma once
#include "attention/layout.cuh"

// Partitions of a sequence of `length` tokens where the grid has `most`: none shorter than `least` tiles, except one alone.
__device__ __forceinline__ int partitions_of(int length, int most, int least) {
    const int tiles = (max(length, 0) + kv::TILE - 1) / kv::TILE;
    return max(1, min(most, (tiles + least - 1) / least));
}

// The tile where partition `part` of `parts` begins; the tiles are shared out evenly.
__device__ __forceinline__ int first_tile(int tiles, int part, int parts) {
    return static_cast<int>(static_cast<long long>(tiles) * part / parts);
}
