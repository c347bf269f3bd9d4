"""The kernels' own predictions: what `python -m sm70_kernels.predict` prints, asked for once and then kept.

It is run in a process of its own: it takes minutes, and a time limit ends it. How a step is put together of what it
printed is `sm70_kernels.predict.parts`, which is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import whole_file
from appliance.errors import CheckError
from sm70_kernels.predict.parts import Kernels, Machine, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PACKAGE = "sm70_kernels"
TIMEOUT_S = 1800.0
"""Of one number of rows; a prompt of 2048 tokens takes minutes of one core."""

_SOURCES = frozenset({".py", ".toml", ".cu", ".cuh"})


def predict(tokens: int, ranks: int, logits: int, families: Sequence[str], folder: Path) -> Kernels:
    """Return what a step of `tokens` rows takes, of which `logits` are sampled from, for parts named like `families`.

    What was predicted before with the same kernels lies in `folder`. Raises CheckError when the model cannot be run.
    """
    words = ("--json", "--m", str(tokens), "--tp", str(ranks), "--logits", str(logits), "--kernel", ",".join(families))
    kept = folder / f"{hashlib.sha256(' '.join((source_hash(), *words)).encode()).hexdigest()[:32]}.json"
    try:
        return parse(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        text = _run(words)
    try:
        found = parse(text)
    except ValueError as error:
        raise CheckError(f"{error}; wanted a {PACKAGE} that goes with this appliance") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        whole_file.write(kept, text)
    except OSError:
        pass  # It is predicted again the next time.
    return found


def parse(text: str) -> Kernels:
    """Read the model's JSON. Raises ValueError for any other."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the kernels' model printed no JSON ({error})") from error
    try:
        rows = [
            Row(
                each["part"],
                each["family"],
                int(each["launches_a_step"]),
                float(each["us"]),
                float(each["roofline_us"]),
                each["basis"] == "machine code",
            )
            for each in record["predictions"]
        ]
        return Kernels(tuple(rows), Machine.of(record["machine"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the kernels' model printed JSON without {error}") from error


def source_hash() -> str:
    """Return the hash of all that decides a prediction: the package's Python, tables and device code."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckError(f"the Python package {PACKAGE} is not installed here; predict where the engine is")
    package = Path(spec.origin).parent
    found = hashlib.sha256()
    for path in _files((package, package.parent / "csrc")):
        found.update(path.relative_to(package.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def _files(folders: Iterable[Path]) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in _SOURCES)


def _run(words: Sequence[str]) -> str:
    command = (sys.executable, "-m", f"{PACKAGE}.predict", *words)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        shown = " ".join(("python", *command[1:]))
        raise CheckError(f"`{shown}` has not ended after {TIMEOUT_S:g} s; run it alone to see why") from error
    except OSError as error:
        raise CheckError(f"{sys.executable} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise CheckError(f"the kernels' model failed: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout
