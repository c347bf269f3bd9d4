// Stands in for csrc/ptx/scattered.cuh.
#pragma once
#include "ptx/memory.cuh"

inline void store_1(void* address, unsigned value) { store(address, static_cast<unsigned char>(value)); }
inline void store_8(void* address, float2 value) {
    if (reinterpret_cast<std::uintptr_t>(address) % 8) std::abort();
    store(address, value);
}
inline float2 load_8(const void* address) {
    if (reinterpret_cast<std::uintptr_t>(address) % 8) std::abort();
    return load<float2>(address);
}
inline int load_int(const void* address) { return load<int>(address); }
inline long long load_long(const void* address) { return load<long long>(address); }
