// Stands in for csrc/ptx/memory.cuh; an access at an address that is no multiple of its size ends the process.
#pragma once
#include "device.hpp"

template <class Value>
inline Value load(const void* address) {
    if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Value)) std::abort();
    Value value;
    std::memcpy(&value, address, sizeof value);
    return value;
}
template <class Value>
inline void store(void* address, Value value) {
    if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Value)) std::abort();
    std::memcpy(address, &value, sizeof value);
}
inline uint4 load_16(const void* address) { return load<uint4>(address); }
inline uint4 load_16_once(const void* address) { return load<uint4>(address); }
inline uint4 load_16_here(const void* address) { return load<uint4>(address); }
inline unsigned short load_2(const void* address) { return load<unsigned short>(address); }
inline float load_float(const void* address) { return load<float>(address); }
inline void prefetch_l2(const void*) {}
inline void store_16(void* address, uint4 value) { store(address, value); }
inline void store_2(void* address, unsigned short value) { store(address, value); }
inline void store_float(void* address, float value) { store(address, value); }
