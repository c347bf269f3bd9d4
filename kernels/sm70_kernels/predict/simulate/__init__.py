"""How long an SM takes to issue what its warps' traces say."""
