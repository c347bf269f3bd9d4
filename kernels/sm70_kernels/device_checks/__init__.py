"""Plain torch: what each operator computes. Also its CPU implementation and its fallback."""
