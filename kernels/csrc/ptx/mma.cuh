// Volta's tensor core: four independent 8x8x4 products in a warp, FP16 in, FP32 accumulators (HMMA.884 STEP0..3).
#pragma once

// c += a * b. Which element a register holds in which lane: mma/m8n8k4.cuh.
__device__ __forceinline__ void mma_m8n8k4(float (&c)[8], const unsigned (&a)[2], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
}
