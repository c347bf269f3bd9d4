// Loads that run far ahead of their use, and accesses to memory that other blocks of the same grid write.
#pragma once

// Read-only data that is read once; `value` stays as it is unless `wanted`. A predicate and no branch: around a branch
// the compiler would gather the loads of several steps, at twice the registers.
__device__ __forceinline__ void load_16_ahead(uint4& value, const void* address, bool wanted) {
    asm volatile(
        "{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
        : "l"(address), "r"(static_cast<unsigned>(wanted)));
}

// From L2, past L1: what another block wrote before a fence.
__device__ __forceinline__ float4 load_16_of_grid(const float4* address) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(address)
                 : "memory");
    return value;
}

__device__ __forceinline__ void store_4(void* address, unsigned value) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
