"""The Dockerfile and the lists beside it agree with each other, with the locks and with the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from appliance.image import audit
from appliance.paths import CONFIG, ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IMAGE = CONFIG / "image"


def locked(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", lock.read_text(encoding="utf-8"), re.MULTILINE))


def listed(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("names", "lock"),
    [("not-in-images", "portable"), ("not-in-images", "v100"), ("not-on-volta", "v100"), ("not-in-sidecar", "sidecar")],
)
def test_every_package_that_is_left_out_is_locked(names: str, lock: str) -> None:
    found = listed(IMAGE / f"{names}.txt")
    assert found == sorted(found)
    assert set(found) <= locked(CONFIG / "requirements" / f"{lock}.txt")


def test_what_is_left_out_leaves_no_engine_without_its_parts() -> None:
    out = {*listed(IMAGE / "not-in-images.txt"), *listed(IMAGE / "not-on-volta.txt")}
    assert not out & {"vllm", "torch", "triton", "transformers", "setuptools", "numpy", "supervisor", "cuda-bindings"}


def test_tools_are_locked_by_hash() -> None:
    text = (IMAGE / "tools.txt").read_text(encoding="utf-8")
    assert {"cyclonedx-bom", "setuptools"} <= locked(IMAGE / "tools.txt")
    for block in re.split(r"\n(?=[a-z0-9])", text):
        assert "--hash=sha256:" in block


def test_everything_that_is_copied_out_of_the_tree_is_there_and_let_through() -> None:
    let_through = [line[1:] for line in listed(ROOT / ".dockerignore") if line.startswith("!")]
    for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source == "." or any(source == name or source.startswith(f"{name}/") for name in let_through), source
    assert all((ROOT / name).exists() for name in let_through)


@pytest.mark.parametrize("target", audit.TARGETS)
def test_each_image_is_audited_and_listed_and_runs_as_nobody_in_particular(target: str) -> None:
    stage = re.search(rf"^FROM {target}-tree AS {target}\n(.+?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert stage is not None
    for wanted in (
        f"COPY --from=audit-{target} ",
        f"COPY --from=bill-{target} ",
        f"ENV APPLIANCE_IMAGE={target}-${{REVISION}}",
        "org.opencontainers.image.revision=",
        "org.opencontainers.image.base.digest=",
        "HEALTHCHECK ",
    ):
        assert wanted in stage[1], wanted
    assert re.findall(r"^USER (.+)$", stage[1], re.MULTILINE) == ["10001:0"]


def test_only_stages_of_this_file_and_the_given_base_are_built_on() -> None:
    stages = set(re.findall(r" AS ([a-z0-9-]+)$", DOCKERFILE, re.MULTILINE))
    sources = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    assert sources - stages == {"${BASE}", "scratch"}
    # A syntax line would make the build fetch its own frontend from a registry.
    assert "syntax=" not in DOCKERFILE.splitlines()[0]


ENV_FILE = (
    "INDEX_URL=https://index/simple\nCA_BUNDLE='/etc/ca of ours.pem'\nBUILD_NETWORK=default\n#BUILD_NETWORK=none\n"
)


@pytest.mark.parametrize(
    ("env_file", "environment", "network", "others"),
    [
        (None, {}, "host", []),
        (ENV_FILE, {}, "default", ["--secret", "id=ca,src=/etc/ca of ours.pem", "INDEX_URL=https://index/simple"]),
        (
            ENV_FILE,
            {"NETWORK": "host", "CA_BUNDLE": "/ca"},
            "host",
            ["id=ca,src=/ca", "INDEX_URL=https://index/simple"],
        ),
        (None, {"SSL_CERT_FILE": "/theirs"}, "host", ["id=ca,src=/theirs"]),
    ],
)
def test_a_build_reads_what_compose_would_read(
    env_file: str | None, environment: dict[str, str], network: str, others: list[str], tmp_path: Path
) -> None:
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(IMAGE, checkout / "config" / "image")
    (checkout / "appliance").mkdir()
    shutil.copy(ROOT / "appliance" / "__init__.py", checkout / "appliance")
    if env_file is not None:
        (checkout / ".env").write_text(env_file)
    programs.mkdir()
    (programs / "docker").write_text('#!/bin/sh\n[ "$1 $2" != "buildx build" ] || printf "%s\\n" "$@"\n')
    (programs / "docker").chmod(0o755)
    command: list[str | Path] = [checkout / "config" / "image" / "build.sh", "sidecar", "of-a-test:sidecar"]
    path = {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(command, env={**path, **environment}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.splitlines()
    assert words[words.index("--network") + 1] == network
    assert set(others) <= set(words)
    assert ("--secret" in words) == any(other.startswith("id=ca") for other in others)
