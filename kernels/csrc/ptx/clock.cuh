// The SM's cycle counter. A read waits for the instructions before it, and nothing moves across it.
#pragma once

__device__ __forceinline__ long long cycles_now() {
    long long now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}
