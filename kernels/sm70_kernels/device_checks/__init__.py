"""Kernels that check the device itself: lane maps of the tensor core, dequantised codes through it, barriers."""
