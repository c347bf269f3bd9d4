"""Kernels for NVIDIA Volta (SM70): what is built, how it is built, loaded and launched, and torch operators over it."""
