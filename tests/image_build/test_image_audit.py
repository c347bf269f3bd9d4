"""The audit of an image while it is built: good trees pass, each broken one ends with one line."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING

import pytest

from appliance.errors import CheckError
from appliance.image import audit, engine, kernels, libraries, root
from appliance.launch.environment import PLUGINS
from appliance.paths import CONFIG
from sm70_kernels.build import manifest
from sm70_kernels.build.compiler import Compiled, Resources
from sm70_kernels.registry import Specialisation, registered
from tests.image_build.elf_maker import Part, container, entry, library

if TYPE_CHECKING:
    from pathlib import Path

SPECS = registered()[:3]
COMPILER = "NVRTC 12.8.93"
INSTALL = CONFIG / "image" / "install.sh"


# Files


def test_a_setuid_file_is_found_and_links_are_not_followed(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "bin" / "su"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "bin").symlink_to("usr/bin")
    assert root.no_privileged_files(tmp_path) == "no setuid or setgid file among 1"
    program.chmod(0o4755)
    with pytest.raises(CheckError, match=r"usr/bin/su has mode 4755; wanted no setuid or setgid file"):
        root.no_privileged_files(tmp_path)


def test_what_not_every_user_can_read_is_found(tmp_path: Path) -> None:
    probe = tmp_path / "healthchecks" / "ready"
    probe.parent.mkdir()
    probe.touch(0o755)
    tmp_path.chmod(0o755)
    (tmp_path / "link").symlink_to("nowhere")
    assert root.for_every_user(tmp_path) == "4 files and folders, which every user can read"
    probe.chmod(0o700)
    with pytest.raises(CheckError, match=r"healthchecks/ready has mode 700; wanted it readable for every user"):
        root.for_every_user(tmp_path)
    probe.chmod(0o755)
    probe.parent.chmod(0o744)
    with pytest.raises(CheckError, match=r"healthchecks has mode 744"):
        root.for_every_user(tmp_path)


def test_a_checkout_that_is_its_owners_alone_is_opened(tmp_path: Path) -> None:
    """The step of install.sh that does it, on a folder of the test's own."""
    probe = tmp_path / "healthchecks" / "ready"
    probe.parent.mkdir(mode=0o700)
    probe.touch(0o700)
    (tmp_path / "a.py").touch(0o600)
    (tmp_path / "link").symlink_to("/nowhere")
    tmp_path.chmod(0o700)
    (step,) = (line for line in INSTALL.read_text(encoding="utf-8").splitlines() if line.startswith("find . "))
    subprocess.run(["/bin/sh", "-euc", step], cwd=tmp_path, check=True, timeout=60)
    root.for_every_user(tmp_path)
    assert (probe.stat().st_mode & 0o777, (tmp_path / "a.py").stat().st_mode & 0o777) == (0o755, 0o644)


def test_a_driver_library_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "usr" / "local" / "cuda" / "compat"
    folder.mkdir(parents=True)
    assert root.no_driver(tmp_path) == "no CUDA driver of its own"
    (folder / "libcuda.so.570").touch()
    with pytest.raises(CheckError, match=r"libcuda\.so\.570 is a driver library"):
        root.no_driver(tmp_path)


def test_a_compat_folder_in_the_loaders_path_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "ld.so.conf.d"
    folder.mkdir(parents=True)
    (folder / "cuda.conf").write_text("/usr/local/cuda/lib64\n")
    root.no_driver(tmp_path)
    (folder / "nvidia.conf").write_text("/usr/local/cuda/compat\n")
    with pytest.raises(CheckError, match=r"nvidia\.conf names a compat folder"):
        root.no_driver(tmp_path)


# Device code


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages with two extensions that have device code, and a cuobjdump that says what the test wrote beside them."""
    folder = tmp_path / "site"
    (folder / "vllm").mkdir(parents=True)
    for name in ("_C.abi3.so", "_vllm_fa2_C.abi3.so"):
        (folder / "vllm" / name).write_bytes(library(Part(".nv_fatbin", container(entry(2, 90, 8)))))
    (folder / "vllm" / "plain.so").write_bytes(library(Part(".text", b"host")))
    listed = "".join(f"ELF file    {n}: tmp{n}.{arch}.cubin\n" for n, arch in enumerate(("sm_70", "sm_90", "sm_70")))
    (folder / "vllm" / "_C.abi3.so.list").write_text(listed)
    reader = folder / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"
    reader.parent.mkdir(parents=True)
    reader.write_text('#!/bin/sh\ncat "$2.list" 2>/dev/null || exit 255\n')
    reader.chmod(0o755)
    return folder


def test_a_library_with_all_its_cubins_passes(site: Path) -> None:
    found = libraries.complete(site, {"vllm/_C.abi3.so": 2}, libraries.reader(site))
    assert found == "2 cubins for sm_70 in 1 libraries, as published"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"vllm/_C.abi3.so": 3}, "vllm/_C.abi3.so has 2 cubins for sm_70; wanted 3"),
        ({"vllm/_vllm_fa2_C.abi3.so": 1}, "vllm/_vllm_fa2_C.abi3.so has 0 cubins for sm_70; wanted 1"),
        ({"vllm/_moe_C.abi3.so": 8}, "vllm/_moe_C.abi3.so is missing; wanted it with 8 cubins"),
    ],
)
def test_a_library_that_lost_device_code_is_named(site: Path, wanted: dict[str, int], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        libraries.complete(site, wanted, libraries.reader(site))


def test_extensions_beside_the_table_are_known_ones(site: Path) -> None:
    reader = libraries.reader(site)
    assert libraries.known(site, {"vllm/_C.abi3.so": 2}, reader) == "not called on a V100: _vllm_fa2_C"
    with pytest.raises(
        CheckError, match=r"_C\.abi3\.so has device code, 2 cubins for sm_70; wanted it in device-code\.json"
    ):
        libraries.known(site, {}, reader)


def test_a_missing_cuobjdump_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="wanted cuobjdump of the triton wheel"):
        libraries.reader(tmp_path)


def test_the_table_names_vllms_operators_and_torchs_kernels() -> None:
    table = libraries.table()
    assert table["vllm/_C.abi3.so"] == 28
    assert table["torch/lib/libtorch_cuda.so"] > 400
    assert all(count > 0 for count in table.values())


# Kernels


def build(folder: Path, specs: tuple[Specialisation, ...], resources: Resources | None = None) -> manifest.Manifest:
    folder.mkdir(exist_ok=True)
    compiled = Compiled(b"cubin", b"ptx", resources or Resources(32, 0, 0, 0, 0))
    entries = {spec.name: manifest.describe(spec, compiled, COMPILER) for spec in specs}
    record = manifest.Manifest(COMPILER, "source", entries)
    write(folder, record)
    for spec in specs:
        (folder / f"{spec.name}.cubin").write_bytes(b"cubin")
        (folder / f"{spec.name}.ptx").write_bytes(b"ptx")
    return record


def write(folder: Path, record: manifest.Manifest) -> None:
    (folder / manifest.FILE_NAME).write_text(manifest.dump(record))


def test_kernels_that_are_all_there_pass(tmp_path: Path) -> None:
    build(tmp_path, SPECS)
    assert kernels.complete(tmp_path, SPECS).startswith("3 registered kernels with their hashes, by NVRTC 12.8.93")


def test_a_kernel_that_was_not_built_is_named(tmp_path: Path) -> None:
    build(tmp_path, SPECS[:2])
    with pytest.raises(CheckError, match=f"kernel {SPECS[2].name} is not in .*; wanted all 3"):
        kernels.complete(tmp_path, SPECS)


def test_a_kernel_with_other_bytes_is_named(tmp_path: Path) -> None:
    build(tmp_path, SPECS)
    (tmp_path / f"{SPECS[1].name}.cubin").write_bytes(b"other")
    with pytest.raises(CheckError, match=rf"{SPECS[1].name}\.cubin has SHA-256"):
        kernels.complete(tmp_path, SPECS)


def test_a_kernel_of_other_sources_is_named(tmp_path: Path) -> None:
    record = build(tmp_path, SPECS)
    entries = {**record.kernels, SPECS[0].name: dataclasses.replace(record.kernels[SPECS[0].name], key="0" * 64)}
    write(tmp_path, dataclasses.replace(record, kernels=entries))
    with pytest.raises(CheckError, match=f"kernel {SPECS[0].name} was built from other sources"):
        kernels.complete(tmp_path, SPECS)


def test_a_kernel_that_spills_is_named(tmp_path: Path) -> None:
    build(tmp_path, SPECS, Resources(255, 0, 0, 16, 16))
    with pytest.raises(CheckError, match="spills or keeps 32 bytes in local memory; wanted 0"):
        kernels.complete(tmp_path, SPECS)


@pytest.mark.parametrize("text", [None, "{", '{"schema": 99}'])
def test_a_manifest_that_cannot_be_read_is_told(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / manifest.FILE_NAME).write_text(text)
    with pytest.raises(CheckError, match=r"manifest\.json cannot be read"):
        kernels.complete(tmp_path, SPECS)


# Engine

GOOD = {"failed": {}, "unwanted": [], "plugins": dict.fromkeys(PLUGINS, True)}


def test_an_engine_that_imports_with_our_plugins_passes() -> None:
    engine.judge(GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"failed": {"vllm._C": "ImportError: undefined symbol\n x"}},
            "vllm._C: ImportError: undefined symbol x; wanted",
        ),
        ({"unwanted": ["flashinfer"]}, "flashinfer was imported; wanted the image to do without"),
        ({"plugins": {"appliance": True}}, 'vLLM would find no plugin "appliance_heartbeat"'),
        ({"plugins": dict.fromkeys(PLUGINS, True) | {"appliance": False}}, 'vLLM would find no plugin "appliance"'),
    ],
)
def test_an_engine_that_lacks_something_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        engine.judge({**GOOD, **change})


def test_a_package_that_should_not_be_there_is_named(tmp_path: Path) -> None:
    information = tmp_path / "FlashInfer_Python-0.6.6.dist-info"
    assert engine.absent(tmp_path, ["flashinfer-python"]) == "without flashinfer-python"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: FlashInfer_Python\nVersion: 0.6.6\n")
    with pytest.raises(CheckError, match=r"FlashInfer_Python 0\.6\.6 is installed; wanted it left out"):
        engine.absent(tmp_path, ["flashinfer-python"])


def test_left_out_packages_have_their_modules_names() -> None:
    assert "flashinfer-cubin" in engine.left_out()
    assert engine.modules(("flashinfer-python", "quack-kernels", "tabulate")) == ["flashinfer", "quack", "tabulate"]


def test_the_drivers_functions_are_read_off_the_symbol_names(tmp_path: Path) -> None:
    path = tmp_path / "ext.so"
    names = b"\0cuLaunchKernel\0cublasCreate_v2\0cuFileRead\0cudaMalloc\0cuTensorMapEncodeTiled\0xcuInit\0"
    path.write_bytes(library(Part(".dynstr", names, kind=3)))
    assert engine.driver_calls([path]) == {"cuLaunchKernel", "cuTensorMapEncodeTiled"}


# The whole


def test_each_image_is_asked_what_concerns_it(tmp_path: Path) -> None:
    assert [*audit.checks("sidecar", tmp_path, tmp_path)] == ["files", "driver", "users", "packages"]
    assert [*audit.checks("portable", tmp_path, tmp_path)] == ["files", "driver", "users", "engine", "plugins"]
    assert {"device code", "extensions", "kernels", "engine", "CUDA"} <= audit.checks("v100", tmp_path, tmp_path).keys()


def test_the_build_ends_with_the_first_finding_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise CheckError("kernel x is not there; wanted it; build it")

    def never() -> str:
        raise AssertionError("asked after a finding")

    monkeypatch.setattr(audit, "checks", lambda *_: {"good": lambda: "fine", "bad": fail, "later": never})
    assert audit.main(["--target", "v100"]) == 1
    said = capsys.readouterr()
    assert said.out == "audit: good: fine\n"
    assert said.err == "audit: v100 image: kernel x is not there; wanted it; build it\n"
