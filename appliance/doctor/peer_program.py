"""Copies a pattern from each GPU to each other and reads it back. Runs as a program of its own, since it imports torch.

`python -m appliance.doctor.peer_program INDEX...`: prints {"gpus": N, "pairs": [[from, to, peer, right], ...]}.
Indices are NVML's.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import permutations

WORDS = 4 << 20
"""32-bit words of one pattern: 16 MiB cross any window through which a bridge would remap them."""


def main(indices: list[int]) -> int:
    """Test every ordered pair of `indices`. Returns the exit status."""
    # Both must be set before CUDA starts: device n is then the n-th of `indices`, and no other GPU is touched.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, indices))
    import torch

    seen = torch.cuda.device_count()
    pairs = []
    for a, b in permutations(range(seen), 2):
        pattern = torch.arange(WORDS, dtype=torch.int32) * (2 * a + 3) + b
        there = pattern.to(f"cuda:{a}").to(f"cuda:{b}")
        back = there.to(f"cuda:{a}").cpu()
        right = bool(torch.equal(there.cpu(), pattern)) and bool(torch.equal(back, pattern))
        pairs.append([indices[a], indices[b], torch.cuda.can_device_access_peer(a, b), right])
    print(json.dumps({"gpus": seen, "pairs": pairs}))
    return 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
