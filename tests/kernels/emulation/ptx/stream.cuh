// Stands in for csrc/ptx/stream.cuh.
#pragma once
#include "ptx/memory.cuh"

inline void load_16_ahead(uint4& value, const void* address, bool wanted) {
    if (wanted) value = load<uint4>(address);
}
inline float4 load_16_of_grid(const float4* address) { return load<float4>(address); }
inline void store_4(void* address, unsigned value) { store(address, value); }
