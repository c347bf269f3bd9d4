"""Put a kernel on the GPU: load its machine code once for each device, launch it on torch's current stream."""

from sm70_kernels.launch.launcher import launch, prepare

__all__ = ["launch", "prepare"]
