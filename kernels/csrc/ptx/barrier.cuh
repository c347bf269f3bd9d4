// Barriers of a part of a block, by number: 0 is the one of __syncthreads, so 1 to 15 are free.
#pragma once

// Waits until `threads` threads (whole warps) have arrived at barrier `number`; what they wrote to shared memory is seen.
__device__ __forceinline__ void synchronise(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
