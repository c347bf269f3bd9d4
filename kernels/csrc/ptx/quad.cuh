// Global memory, four halves (8 bytes) a lane. Addresses must be multiples of 8.
#pragma once

// Read-only for the whole kernel.
__device__ __forceinline__ uint2 load_8(const void* address) {
    uint2 value;
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address));
    return value;
}

// Of memory that this kernel writes later on; issued in the order written.
__device__ __forceinline__ uint2 load_8_here(const void* address) {
    uint2 value;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(address) : "memory");
    return value;
}

// One integer, likewise.
__device__ __forceinline__ int load_integer_here(const int* address) {
    int value;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_8(void* address, uint2 value) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(value.x), "r"(value.y) : "memory");
}
