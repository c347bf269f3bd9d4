"""serve_qwen38_27b_nvfp4_v100.sh, with a stub in place of `appliance`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

from appliance.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = "entrypoint/serve_qwen38_27b_nvfp4_v100.sh"
SERVE = ["serve", "--profile", "qwen38_27b_nvfp4_dflash2", "--model"]


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder with a program `appliance` that prints its arguments, one a line in brackets, and ends with status 7."""
    program = tmp_path / "bin" / "appliance"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '[%s]\\n' \"$@\"\nexit 7\n")
    program.chmod(0o755)
    return program.parent


def launch(stub: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{stub}:{os.environ['PATH']}"}
    return subprocess.run([ROOT / SCRIPT, *words], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/m"], [*SERVE, "/m", "--"]),
        (["my model"], [*SERVE, "my model", "--"]),
        (["/m", "--draft", "/d d"], [*SERVE, "/m", "--draft", "/d d", "--"]),
        (["/m", "--draft=/d"], [*SERVE, "/m", "--draft", "/d", "--"]),
        (["/m", "--port", "8001"], [*SERVE, "/m", "--", "--port", "8001"]),
        (
            ["/m", "--draft", "/d", "--speculative-config.num_speculative_tokens", "5", "a b", "*"],
            [*SERVE, "/m", "--draft", "/d", "--", "--speculative-config.num_speculative_tokens", "5", "a b", "*"],
        ),
        (["/m", "--help"], [*SERVE, "/m", "--", "--help"]),
    ],
)
def test_it_hands_over_to_serve(stub: Path, words: list[str], expected: list[str]) -> None:
    done = launch(stub, *words)
    assert done.stdout == "".join(f"[{word}]\n" for word in expected)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TARGET is missing"),
        ([""], "TARGET is missing"),
        (["--draft", "/d"], 'TARGET comes first, got "--draft"'),
        (["/m", "--draft"], "--draft wants a folder"),
        (["/m", "--draft", ""], "--draft wants a folder"),
        (["/m", "--draft="], "--draft wants a folder"),
    ],
)
def test_misuse_is_told_with_the_usage(stub: Path, words: list[str], message: str) -> None:
    done = launch(stub, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"serve_qwen38_27b_nvfp4_v100.sh: {message}\nusage: serve_qwen38_27b_nvfp4_v100.sh TARGET [--draft DIR]"
    )


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help(stub: Path, word: str) -> None:
    done = launch(stub, word)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: serve_qwen38_27b_nvfp4_v100.sh TARGET [--draft DIR] [vllm options]\n")


@pytest.mark.parametrize("linked", [False, True])
def test_it_finds_the_environment_that_it_is_installed_in(stub: Path, tmp_path: Path, linked: bool) -> None:
    installed = stub / "serve_qwen38_27b_nvfp4_v100.sh"
    shutil.copy2(ROOT / SCRIPT, installed)
    called = installed
    if linked:
        called = tmp_path / "elsewhere"
        called.symlink_to(installed)
    other = tmp_path / "other" / "appliance"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    for path in ("/usr/bin:/bin", f"{other.parent}:/usr/bin:/bin"):
        done = subprocess.run([called, "/m"], env={"PATH": path}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout == "".join(f"[{word}]\n" for word in [*SERVE, "/m", "--"])


def test_in_a_checkout_it_finds_the_environment_beside(stub: Path, tmp_path: Path) -> None:
    script = tmp_path / "checkout" / SCRIPT
    script.parent.mkdir(parents=True)
    shutil.copy2(ROOT / SCRIPT, script)
    own = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([script, "/m"], env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith(
        f'serve_qwen38_27b_nvfp4_v100.sh: no program "appliance" in {script.parent}, on PATH '
    )
    assert done.stderr.count("\n") == 1
    stub.rename(tmp_path / "made")
    (tmp_path / "checkout" / ".venv").mkdir()
    (tmp_path / "made").rename(tmp_path / "checkout" / ".venv" / "bin")
    assert subprocess.run([script, "/m"], env=own, capture_output=True, check=False).returncode == 7


def test_it_is_installed_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert SCRIPT in project["tool"]["setuptools"]["script-files"]
