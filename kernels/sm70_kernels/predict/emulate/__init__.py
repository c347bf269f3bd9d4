"""Which instructions the warps of a block issue, and what their memory accesses touch."""
