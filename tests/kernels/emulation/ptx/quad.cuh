// Stands in for csrc/ptx/quad.cuh.
#pragma once
#include "ptx/memory.cuh"

inline uint2 load_8(const void* address) { return load<uint2>(address); }
inline uint2 load_8_here(const void* address) { return load<uint2>(address); }
inline int load_integer_here(const int* address) { return load<int>(address); }
inline void store_8(void* address, uint2 value) { store(address, value); }
