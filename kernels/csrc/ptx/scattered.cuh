// Small stores to global memory, where a layout leaves a lane no more than that, and loads that a later store may follow.
#pragma once

__device__ __forceinline__ void store_1(void* address, unsigned value) {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_8(void* address, float2 value) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(value.x), "f"(value.y) : "memory");
}

__device__ __forceinline__ float2 load_8(const void* address) {
    float2 value;
    asm("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(address));
    return value;
}

__device__ __forceinline__ int load_int(const void* address) {
    int value;
    asm("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
}

__device__ __forceinline__ long long load_long(const void* address) {
    long long value;
    asm("ld.global.nc.s64 %0, [%1];" : "=l"(value) : "l"(address));
    return value;
}
