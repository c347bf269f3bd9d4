// Loads of one word from a chosen level of the caches, in the order written.
#pragma once

// From L2, past L1.
__device__ __forceinline__ unsigned load_4_l2(const void* address) {
    unsigned value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

// From L1 where it is there, of data that nobody writes meanwhile: `ld.global.ca` would be a strong load of the block, past
// L1.
__device__ __forceinline__ unsigned load_4_l1(const void* address) {
    unsigned value;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}

__device__ __forceinline__ uint4 load_16_l1(const void* address) {
    uint4 value;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}
