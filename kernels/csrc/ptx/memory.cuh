// Global memory, 16 bytes a lane where the layout allows it. Addresses must be multiples of the access's size.
#pragma once

// Read-only for the whole kernel: goes through the texture path and may be reordered freely.
__device__ __forceinline__ uint4 load_16(const void* address) {
    uint4 value;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(address));
    return value;
}

// As load_16, for data that is read once: it does not push anything out of L1.
__device__ __forceinline__ uint4 load_16_once(const void* address) {
    uint4 value;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(address));
    return value;
}

// As load_16, but issued in the order written, and before a barrier that stands after it (__syncwarp will do): other
// loads are put off until just before their use.
__device__ __forceinline__ uint4 load_16_here(const void* address) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

__device__ __forceinline__ unsigned short load_2(const void* address) {
    unsigned short value;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(value) : "l"(address));
    return value;
}

__device__ __forceinline__ float load_float(const void* address) {
    float value;
    asm("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
}

// Starts the way of a line from memory into L2 and holds no register meanwhile.
__device__ __forceinline__ void prefetch_l2(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

__device__ __forceinline__ void store_16(void* address, uint4 value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ void store_2(void* address, unsigned short value) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_float(void* address, float value) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
}
