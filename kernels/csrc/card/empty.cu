// Does nothing but where it is asked to: what starting a kernel takes. out[i] = i for i < count.
#include "ptx/memory.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) card_empty(float* out, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) store_float(out + i, static_cast<float>(i));
}
