// Stands in for csrc/ptx/cached.cuh.
#pragma once
#include "ptx/memory.cuh"

inline unsigned load_4_l2(const void* address) { return load<unsigned>(address); }
inline unsigned load_4_l1(const void* address) { return load<unsigned>(address); }
inline uint4 load_16_l1(const void* address) { return load<uint4>(address); }
