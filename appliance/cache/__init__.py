"""The compile cache: what vLLM, inductor, Triton and our kernels compiled, kept over restarts and proven before use."""
