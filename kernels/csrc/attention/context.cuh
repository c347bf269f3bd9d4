// A warp's way through the context: which tiles a chunk has, where they lie, and the loads that run ahead of their use.
//
// A chunk is eight tiles of 16 tokens. In a chunk a warp multiplies the keys of its tiles (of one or two of the eight), then
// the values of its slices of 32 head elements for all eight. Its loads come in that order in batches, each into one of
// two sets of registers: as soon as one has arrived the next is asked for, which then has all the time in which the one
// that arrived is used. Two under way at once would share a scoreboard barrier, where a wait for one is a wait for both;
// so the address of the next batch hangs on what arrived, by way of a zero that the compiler does not know.
#pragma once
#include "attention/layout.cuh"
#include "ptx/scattered.cuh"
#include "ptx/stream.cuh"

constexpr int CHUNK = 8;  // tiles

template <int format, int head, int warps>
struct Context {
    static constexpr int PARTS = kv::bytes(format);  // batches of a tile of keys, and of a slice of values
    static constexpr int SLICES = head / 32;
    static constexpr int UNITS_EACH = (CHUNK + warps - 1) / warps;  // tiles of keys a warp, at most
    static constexpr int SLICES_EACH = (SLICES + warps - 1) / warps;
    static constexpr int OF_KEYS = UNITS_EACH * PARTS;
    static constexpr int BATCHES = OF_KEYS + SLICES_EACH * PARTS;
    static constexpr int KEY_LOADS = head / 32;  // of a batch
    static constexpr int VALUE_LOADS = CHUNK;
    static constexpr int LOADS = KEY_LOADS > VALUE_LOADS ? KEY_LOADS : VALUE_LOADS;
    static_assert(BATCHES % 2 == 0, "a chunk begins with the first of two sets of registers");

    const uint4* pages;  // at this lane's piece of the first tile of the KV head
    const int* table;
    unsigned page_stride, value_offset;  // in pieces of 16 bytes, which reaches 64 GiB
    unsigned zero;
    int page_tiles, end, warp, lane;

    // A warp's tile of keys and its slice of values; the warps that have two tiles are not those that have two slices.
    __device__ __forceinline__ int unit(int i) const { return warp + i * warps; }
    __device__ __forceinline__ int slice(int i) const { return warps - 1 - warp + i * warps; }

    // The page of the tile that this lane looks after in the chunk at tile `first`, and the tile's place there.
    __device__ __forceinline__ int page_of(int first) const {
        const int tile = first + lane % CHUNK;
        return tile < end ? load_int(table + tile / page_tiles) : 0;
    }
    __device__ __forceinline__ unsigned place_of(int first, int page) const {
        const int tile = first + lane % CHUNK;
        constexpr int PIECES = kv::tile_pieces(format, head);
        return static_cast<unsigned>(page) * page_stride + static_cast<unsigned>(tile % page_tiles) * PIECES;
    }

    // Zero, once all of a batch is there.
    __device__ __forceinline__ unsigned arrived(const uint4 (&loaded)[LOADS]) const {
        unsigned any = 0;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) any ^= loaded[i].x;
        return any & zero;
    }

    // Asks for batch `batch`, a constant, of the chunk at tile `first`; `places` are its tiles', by lane.
    __device__ __forceinline__ void ask(uint4 (&into)[LOADS], int batch, int first, unsigned places) const {
        if (batch < OF_KEYS) {
            const int mine = unit(batch / PARTS);
            const bool wanted = (mine < CHUNK) & (first + mine < end);
            const unsigned place = __shfl_sync(0xFFFFFFFFu, places, mine % CHUNK, 32);
            const uint4* from = pages + place + batch % PARTS * (KEY_LOADS * kv::STEP);
#pragma unroll
            for (int i = 0; i < KEY_LOADS; ++i) load_16_ahead(into[i], from + i * kv::STEP, wanted);
        } else {
            const int of_slice = batch - OF_KEYS;
            const int mine = slice(of_slice / PARTS);
            const uint4* from = pages + value_offset + mine * (PARTS * kv::STEP);
            // A wait for a shuffle would be one for loads that share its scoreboard barrier, so all of them come before.
            unsigned place[VALUE_LOADS];
#pragma unroll
            for (int i = 0; i < VALUE_LOADS; ++i) {
                const int tile = (of_slice % PARTS * VALUE_LOADS + i) / PARTS;
                place[i] = __shfl_sync(0xFFFFFFFFu, places, tile, 32);
            }
#pragma unroll
            for (int i = 0; i < VALUE_LOADS; ++i) {
                const int step = of_slice % PARTS * VALUE_LOADS + i;  // of the slice's in the chunk
                const bool wanted = (mine < SLICES) & (first + step / PARTS < end);
                load_16_ahead(into[i], from + place[i] + step % PARTS * kv::STEP, wanted);
            }
        }
    }
};
