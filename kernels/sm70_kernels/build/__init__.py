"""From device code to machine code: NVRTC and its figures, the prebuilt folder, the cache of first uses."""
