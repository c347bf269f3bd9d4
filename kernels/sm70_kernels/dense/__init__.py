"""Dense layers with FP8 weights and FP16 activations; from many rows on their weights are expanded for cuBLAS."""
