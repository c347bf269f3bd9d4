"""The image for V100s, built for real on a machine that has none: its build audits itself, and refuses in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from appliance.image import sizes
from tests.requirement import required
from tests.system.containers import image_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.image, pytest.mark.timeout(image_stack.BUILD_S)]

IMAGE = "v100-appliance:v100"
ROOM = 25 * 10**9
"""Bytes of disk that the build takes at its worst: the wheels as they come, shrunk, and sorted into layers."""
HARDENED = ("--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--user=4711:0", "--tmpfs=/tmp:exec")


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    required("docker")
    free = shutil.disk_usage("/").free
    if free < ROOM:
        pytest.skip(f"the build needs {ROOM / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free")
    image_stack.build("v100")
    yield IMAGE
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=False, capture_output=True)


def test_it_is_three_gigabytes_smaller_than_an_install_as_it_comes(image: str) -> None:
    # 11,259 MB: all of config/requirements/v100.txt but the tools for tests, on the same base, built once and weighed.
    assert sum(layer.bytes for layer in sizes.layers(image)) < 11_259e6 - 3e9


def test_it_says_what_is_in_it(image: str) -> None:
    told = json.loads(subprocess.run(["docker", "image", "inspect", image], check=True, capture_output=True).stdout)
    labels = told[0]["Config"]["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    bill = image_stack.run("docker", "run", *HARDENED, "--entrypoint=cat", image, "/opt/appliance/sbom.cdx.json").stdout
    names = {component["name"] for component in json.loads(bill)["components"]}
    assert {"vllm", "torch", "triton"} <= names
    assert not {"flashinfer-python", "pytest"} & names


def test_without_a_gpu_it_stops_with_one_line(image: str) -> None:
    arguments = ("docker", "run", *HARDENED, "--tmpfs=/run/appliance:mode=1777", "--tmpfs=/var/lib/appliance:mode=1777")
    done = image_stack.run(*arguments, image, "serve", "--profile", "qwen38_27b_fp8_32k", check=False)
    assert done.returncode == 1, done.stderr
    assert "it needs 4 GPUs and none is visible" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
