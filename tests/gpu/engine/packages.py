"""What a python needs to run the appliance with libraries of its own: entry points, and a cut copy of its packages.

`python -m tests.gpu.engine.packages entry-points FOLDER` writes the first; `... cut FOLDER GPU` links the packages that
hold device code into FOLDER and lets appliance.image.shrink keep the code of GPU alone (90 for sm_90) there. FOLDER in
front of PYTHONPATH then counts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch", "torchvision", "torchaudio", "vllm", "triton", "nvidia")
"""Those whose libraries the v100 image cuts."""
NEEDED = {
    "supervisor": "supervisor",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
    "rich": "rich",
    "huggingface_hub": "huggingface-hub",
    "pynvml": "nvidia-ml-py",
    "fastapi": "fastapi",
    "jinja2": "jinja2",
    "prometheus_client": "prometheus-client",
    "uvicorn": "uvicorn",
    "aiohttp": "aiohttp",
    "tokenizers": "tokenizers",
    "vllm": "vllm",
}
"""What `appliance serve` with its sidecar and `appliance bench` import, by module, with the package to install."""


def missing() -> list[str]:
    """Return the packages that this python lacks."""
    return sorted(package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None)


def entry_points(folder: Path) -> None:
    """Write the metadata of our distribution into `folder`, by which vLLM finds the plugin in this checkout.

    Nothing is written where the distribution is installed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try:
        importlib.metadata.version(project["name"])
    except importlib.metadata.PackageNotFoundError:
        described = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        described.mkdir(parents=True, exist_ok=True)
        (described / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
        (described / "entry_points.txt").write_text("\n".join(lines))


def linked(folder: Path, names: Sequence[str] = PACKAGES) -> list[str]:
    """Link every file of the packages that this python would import into `folder`; returns those that are there.

    A folder on another disk is copied. shrink gives a library that it cuts a file of its own.
    """
    found = []
    for package in names:
        spec = importlib.util.find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        for place in map(Path, reversed(places)):  # the first one wins, as it does in an import
            shutil.copytree(place, folder / package, copy_function=_link, dirs_exist_ok=True)
        found += [package] if places else []
    return found


def _link(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def mapped(pid: int, folder: Path) -> dict[str, int]:
    """Return how many libraries of PACKAGES a process has mapped out of `folder`, and how many from elsewhere."""
    text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    libraries = {Path(line.split(maxsplit=5)[5]) for line in text.splitlines() if ".so" in line and "/" in line}
    ours = {path for path in libraries if path.is_relative_to(folder)}
    others = {path for path in libraries - ours if set(PACKAGES) & set(path.parts)}
    return {"cut": len(ours), "elsewhere": len(others)}


def main() -> int:
    from appliance.image import shrink

    folder = Path(sys.argv[2])
    if sys.argv[1] == "entry-points":
        entry_points(folder)
        return 0
    print(f"linked {', '.join(linked(folder))}", flush=True)
    return shrink.main(["--gpu", sys.argv[3], str(folder)])


if __name__ == "__main__":
    sys.exit(main())
