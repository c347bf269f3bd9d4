// Runs device code on the CPU, so that a kernel's own source can be tested without a GPU. It shows logic alone: memory
// order and the rounding of approximations are a GPU's.
//
// Each thread of a block is a fiber that runs until it must wait for others, at a barrier or at an instruction of its
// whole warp. Which goes on, and how fast each warp is, is drawn at random: code that lacks a barrier computes something
// else with each seed. Blocks run one after another, in random order too. Threads that wait for ever end the launch.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block at a time, so one copy serves them all; in a section of its own, so that each block finds no zeros there.
#define __shared__ static __attribute__((section("shared_memory")))

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    int x, y, z;
};
inline Index threadIdx, blockIdx, gridDim;

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <class To, class From>
inline To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }

using std::fmaf;
using std::fmaxf;
using std::fminf;
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float dividend, float divisor) { return dividend / divisor; }

// Where the section begins and ends, from the linker; null without any such variable.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern unsigned char __start_shared_memory[];
[[gnu::weak, gnu::visibility("hidden")]] extern unsigned char __stop_shared_memory[];
}

namespace device {

struct Barrier {
    int arrived = 0;
    unsigned long round = 0;
};

inline ucontext_t scheduler;
inline std::vector<ucontext_t> fibers;
inline std::vector<bool> ended;
inline std::map<int, Barrier> barriers;  // of the block by number; those of its warps come from 16 on
inline int current;
inline bool moved;  // since the scheduler last looked: a barrier opened, or a thread ended
inline void (*body)();
alignas(16) inline unsigned char shared[96 * 1024];

inline void wait(int number, int threads) {
    Barrier& barrier = barriers[number];
    const unsigned long round = barrier.round;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.round;
        moved = true;
    }
    const int self = current;
    while (barrier.round == round) swapcontext(&fibers[self], &scheduler);
}

inline void wait_for_warp() { wait(16 + current / 32, 32); }

inline void enter() {
    body();
    ended[current] = moved = true;
    swapcontext(&fibers[current], &scheduler);
}

// Runs the threads of one block. Returns false when they wait for one another for ever.
inline bool run_block(int threads, std::mt19937& random) {
    constexpr std::size_t STACK = 128 * 1024;
    static std::vector<std::unique_ptr<char[]>> stacks;
    while (stacks.size() < static_cast<std::size_t>(threads)) stacks.emplace_back(new char[STACK]);
    // What is read before it was written is no number.
    std::memset(shared, 0xFF, sizeof shared);
    if (__start_shared_memory) std::memset(__start_shared_memory, 0xFF, __stop_shared_memory - __start_shared_memory);
    barriers.clear();
    fibers.assign(threads, {});
    ended.assign(threads, false);
    std::vector<int> running(threads);
    for (int i = 0; i < threads; ++i) {
        running[i] = i;
        getcontext(&fibers[i]);
        fibers[i].uc_stack.ss_sp = stacks[i].get();
        fibers[i].uc_stack.ss_size = STACK;
        makecontext(&fibers[i], enter, 0);
    }
    // Each warp has a pace of its own, so that one gets far ahead of another where no barrier holds it.
    std::vector<unsigned> pace(threads / 32 + 1);
    for (unsigned& each : pace) each = 1 + random() % 4;
    for (unsigned turn = 1, idle = 0; !running.empty(); ++turn) {
        moved = false;
        std::shuffle(running.begin(), running.end(), random);
        for (const int i : running) {
            if (turn % pace[i / 32] != 0) continue;
            current = i;
            threadIdx = {i, 0, 0};
            swapcontext(&scheduler, &fibers[i]);
        }
        std::erase_if(running, [](int i) { return ended[i]; });
        idle = moved ? 0 : idle + 1;
        // In so many turns each warp has had two of its own.
        if (idle == 8) return false;
    }
    return true;
}

inline bool launch(Index grid, int threads, unsigned seed, void (*kernel)()) {
    std::mt19937 random(seed);
    std::vector<Index> blocks;
    for (int i = 0; i < grid.x * grid.y * grid.z; ++i) {
        blocks.push_back({i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y});
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    gridDim = grid;
    body = kernel;
    return std::all_of(blocks.begin(), blocks.end(), [&](const Index& block) {
        blockIdx = block;
        return run_block(threads, random);
    });
}

// Calls a kernel with the arguments to which `at` points, as the driver's cuLaunchKernel takes them.
template <class... Types, std::size_t... I>
void call(void (*kernel)(Types...), void** at, std::index_sequence<I...>) {
    kernel(*static_cast<Types*>(at[I])...);
}
template <class... Types>
void call(void (*kernel)(Types...), void** at) {
    call(kernel, at, std::index_sequence_for<Types...>{});
}

}  // namespace device

inline void __syncthreads() { device::wait(0, static_cast<int>(device::fibers.size())); }
inline void __syncwarp() { device::wait_for_warp(); }
inline void __threadfence() {}
inline int atomicAdd(int* address, int value) { return std::exchange(*address, *address + value); }

// Every lane must come, as with the full mask on a GPU.
template <class Value>
inline Value exchange(Value value, unsigned from) {
    static Value slots[1024];
    slots[threadIdx.x] = value;
    device::wait_for_warp();
    const Value other = slots[from];
    device::wait_for_warp();
    return other;
}
template <class Value>
inline Value __shfl_xor_sync(unsigned, Value value, int distance) {
    return exchange(value, threadIdx.x ^ distance);
}
template <class Value>
inline Value __shfl_sync(unsigned, Value value, int lane, int width) {
    return exchange(value, threadIdx.x / width * width + lane % width);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
    static unsigned char votes[1024];
    votes[threadIdx.x] = vote;
    device::wait_for_warp();
    unsigned result = 0;
    for (int lane = 0; lane < 32; ++lane) result |= static_cast<unsigned>(votes[threadIdx.x / 32 * 32 + lane]) << lane;
    device::wait_for_warp();
    return result;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
