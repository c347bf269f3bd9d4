"""docs/triton-kernels.md names every Triton kernel of the engine, and those that a step can launch are fit."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from appliance.paths import ROOT

pytestmark = pytest.mark.needs("engine")

LAUNCHED = (
    "In a step",
    "With speculation",
    "Where a kernel of ours is off",
    "With `--attention-backend TRITON_ATTN`",
)
DOTS = {"kernel_unified_attention_3d", "kernel_unified_attention_2d"}
"""They compute dots by FMA, say so, and serve only as a fall-back or when asked for by name."""

SPILLING = {"kernel_unified_attention_2d"}


@cache
def sections() -> dict[str, list[list[str]]]:
    """Return the rows of the page's tables, as cells, by their section."""
    found: dict[str, list[list[str]]] = {}
    page = (ROOT / "docs/triton-kernels.md").read_text(encoding="utf-8")
    for part in page.split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
        found[title] = rows[2:]
    return found


def named(section: str) -> list[str]:
    """Return the first cells of a section's table, out of their quotes."""
    return [row[0].strip("`") for row in sections()[section]]


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def jitted(root: Path) -> dict[str, set[str]]:
    """Return the Triton kernels that each file below `root` defines; what only other kernels call is none."""
    defined: dict[str, set[str]] = {}
    called: set[str] = set()
    launched: set[tuple[str, str]] = set()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        launched.update(re.findall(r"\b(\w+)\s*\[[^\]\n]*\]\(|\b(\w+)\[$", text, re.MULTILINE))
        if "triton" not in text or "jit" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                defined.setdefault(path.relative_to(root).as_posix(), set()).add(node.name)
                calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
                called.update(each.id for each in calls if isinstance(each, ast.Name))
    helpers = called - {name for pair in launched for name in pair}
    return {path: names - helpers for path, names in defined.items() if names - helpers}


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).split(".")[-1] == "jit"


def unlisted(found: dict[str, set[str]], tables: set[str], never: list[str]) -> dict[str, set[str]]:
    """Return the kernels that no table names and no source of the last one covers."""
    left = {}
    for path, names in found.items():
        if not any(path == each or path.startswith(f"{each}/") for each in never) and names - tables:
            left[path] = names - tables
    return left


def test_every_triton_kernel_of_the_engine_is_on_the_page() -> None:
    tables = {name for section in (*LAUNCHED, "Replaced") for name in named(section)}
    never = named("Never launched for this model")
    found = jitted(package("vllm"))
    assert unlisted(found, tables | set(never), never) == {}
    grammars = jitted(package("xgrammar"))
    assert unlisted(grammars, tables, []) == {}
    # Nor does the page name what is no longer there.
    there = {name for names in (*found.values(), *grammars.values()) for name in names}
    sources = {each for each in never if any(path == each or path.startswith(f"{each}/") for path in found)}
    assert sorted((tables | set(never)) - there - sources) == []


def test_a_kernel_that_appears_on_the_path_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/sampler.py").write_text(
        "from vllm.triton_utils import tl, triton\n"
        "@triton.jit\ndef helper(x):\n    return x\n"
        "@triton.jit(do_not_specialize=['n'])\ndef new_kernel(x, n):\n    helper(x)\n"
        "@triton.autotune(configs=[])\n@triton.jit\ndef tuned_kernel(x):\n    pass\n"
        "def call(x):\n    new_kernel[(1,)](x, 2)\n"
    )
    found = jitted(tmp_path)
    assert found == {"v1/sampler.py": {"new_kernel", "tuned_kernel"}}
    assert unlisted(found, {"tuned_kernel"}, ["v1/samp"]) == {"v1/sampler.py": {"new_kernel"}}
    assert unlisted(found, set(), ["v1"]) == {}


def test_every_function_that_inductor_compiles_by_itself_is_on_the_page() -> None:
    """Of the sources that a step goes through; models, quantisation and the like are other models' and methods'."""
    off = (
        *(each for each in named("Never launched for this model") if "." not in each),
        *("model_executor/layers/fla", "transformers_utils", "_xpu_ops.py", "utils/deep_gemm.py"),
        "v1/sample/ops/topk_topp_sampler.py",  # its compiled function draws on CPUs alone
    )
    found = set()
    for path in package("vllm").rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.relative_to(package("vllm")).as_posix().startswith(off) or "@torch.compile" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                found |= {node.name for each in node.decorator_list if ast.unparse(each).startswith("torch.compile(")}
    assert found == set(named("Made by Inductor"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Compile, in a process of its own: vLLM takes Triton for usable only where it is told so before its import."""
    folder = tmp_path_factory.mktemp("triton")
    command = [sys.executable, "-m", "tests.vllm_plugin.sm70.triton_for_sm70", str(folder / "kernels.json")]
    own = {"CUDA_VISIBLE_DEVICES": "", "TRITON_CACHE_DIR": str(folder / "cache"), "VLLM_PLUGINS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.timeout(300)
def test_each_kernel_that_a_step_can_launch_compiles_for_sm_70_without_a_dot(
    compiled: dict[str, list[dict[str, Any]]],
) -> None:
    assert tuple(compiled) == LAUNCHED
    for section, kernels in compiled.items():
        assert sorted({each["kernel"] for each in kernels}) == sorted(named(section))
        for each in kernels:
            assert each["dot"] == (each["kernel"] in DOTS), each
            assert not each["mma"], each
            assert (each["stack"] > 0) == (each["kernel"] in SPILLING), each
    assert not {each["kernel"] for section in LAUNCHED[:2] for each in compiled[section]} & DOTS


def test_the_page_says_what_was_compiled(compiled: dict[str, list[dict[str, Any]]]) -> None:
    for section, kernels in compiled.items():
        told = {row[0].strip("`"): row[2] for row in sections()[section]}
        most = {
            each["kernel"]: max(k["registers"] for k in kernels if k["kernel"] == each["kernel"]) for each in kernels
        }
        for each in kernels:
            text = told[each["kernel"]]
            assert f"{most[each['kernel']]} registers" in text
            assert ("no stack" if not each["stack"] else f"{each['stack']} bytes of stack") in text
            assert ("**has a dot**" in text) == each["dot"]
