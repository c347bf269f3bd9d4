"""The key of a generation: everything that compiled code depends on, and nothing else. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTS = ("image", "vllm", "torch", "triton", "plugin", "kernels", "gpu", "driver_major", "model", "plan")
"""The names of a key's parts, in the order in which they are shown."""


@dataclass(frozen=True)
class Facts:
    """What the key is made of beside the plan; `appliance.cache.facts.gather` looks it up on this machine.

    `plugin` is version and source hash, `kernels` the hash of the kernel build, `cpu` that of the processor's model and
    flags, `model` that of the checkpoint's configuration and of samples of its weights; `none` where there is no such
    thing.
    """

    image: str
    vllm: str
    torch: str
    triton: str
    plugin: str
    kernels: str
    cpu: str
    model: str


def parts_of(plan: Mapping[str, Any], facts: Facts, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the parts by the names of PARTS. `plan` is plan.json's record, `environ` what the engine inherits.

    The environment that the plan adds wins over `environ`, as it does in the engine.
    """
    raise NotImplementedError


def key_of(parts: Mapping[str, str]) -> str:
    """Return the key: the first 32 hexadecimal digits of the SHA-256 over the sorted parts."""
    text = json.dumps(dict(sorted(parts.items())), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
