"""What the kernel package of this process has: its operators, which of them have kernels here, and its hashes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util

from appliance.acceleration.routes import OPERATORS

FAMILIES = ("dense", "norm", "activation", "attention", "gdn")
"""The folders of sm70_kernels whose `operator` module defines what routes name."""


def operators() -> tuple[frozenset[str], frozenset[str]]:
    """Return every name of the routes that sm70_kernels defines, and those of them that have a kernel.

    A name is an operator `torch.ops.sm70.NAME`, or a kernel of the registry inside one. A kernel that awaits a GPU
    counts as absent. Both are empty where the package is not installed.
    """
    if importlib.util.find_spec("sm70_kernels") is None:
        return frozenset(), frozenset()
    import torch

    for family in FAMILIES:
        module = f"sm70_kernels.{family}.operator"
        if importlib.util.find_spec(f"sm70_kernels.{family}") and importlib.util.find_spec(module):
            importlib.import_module(module)
    from sm70_kernels import registry
    from sm70_kernels.torch_library import has_kernel

    inside = set(OPERATORS) & {spec.kernel.name for spec in registry.registered() if not spec.kernel.awaits_gpu}
    defined = {name for name in OPERATORS if hasattr(torch.ops.sm70, name)}
    with_kernel = {name for name in defined if has_kernel(name)} | (inside - defined)
    return frozenset(defined | inside), frozenset(with_kernel)


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
