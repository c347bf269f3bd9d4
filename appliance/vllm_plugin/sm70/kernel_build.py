"""What the kernel package of this process has: its operators, which of them have kernels here, and its hashes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from typing import NamedTuple

from appliance.acceleration.routes import OPERATORS

FAMILIES = ("dense", "norm", "activation", "attention", "gdn")
"""The folders of sm70_kernels whose `operator` module defines what routes name."""


class Names(NamedTuple):
    """Names of the routes: operators `torch.ops.sm70.NAME`, or kernels of the registry inside one."""

    defined: frozenset[str]
    """All that sm70_kernels defines."""
    kernels: frozenset[str]
    """Those that have a kernel which may serve."""
    awaiting: frozenset[str]
    """Those whose kernel no GPU has proven yet."""


def operators() -> Names:
    """Return the names of the routes that sm70_kernels has; none where the package is not installed."""
    if importlib.util.find_spec("sm70_kernels") is None:
        return Names(frozenset(), frozenset(), frozenset())
    import torch

    for family in FAMILIES:
        module = f"sm70_kernels.{family}.operator"
        if importlib.util.find_spec(f"sm70_kernels.{family}") and importlib.util.find_spec(module):
            importlib.import_module(module)
    from sm70_kernels import dispatch, registry
    from sm70_kernels.torch_library import has_kernel

    registered = {spec.kernel.name: spec.kernel.awaits_gpu for spec in registry.registered()}
    defined = {name for name in OPERATORS if hasattr(torch.ops.sm70, name)}
    inside = {name for name in OPERATORS if name in registered and name not in defined}
    awaiting = (defined & dispatch.AWAITING) | {name for name in inside if registered[name]}
    with_kernel = {name for name in defined if has_kernel(name)} | (inside - awaiting)
    return Names(frozenset(defined | inside), frozenset(with_kernel), frozenset(awaiting))


def testable(kernels: frozenset[str]) -> list[str]:
    """Return those names that are operators, to be self-tested on their own, in the table's order.

    A kernel inside an operator is tested with it.
    """
    import torch

    return [name for name in OPERATORS if name in kernels and hasattr(torch.ops.sm70, name)]


def hashes() -> dict[str, str]:
    """Return SHA-256 of the kernels' sources, and of the manifest of what was built ahead, where there is one."""
    if importlib.util.find_spec("sm70_kernels") is None:
        return {}
    from sm70_kernels import registry
    from sm70_kernels.build import manifest, store

    found = {"source": registry.source_hash()}
    file = store.prebuilt_folder() / manifest.FILE_NAME
    if file.is_file():
        found["build"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found
