"""The GPU suite: skipped where there is no GPU, and recorded in the file that `SM70_GPU_RECORD` names."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.proof.prove import Outcome


@dataclass
class Findings:
    """What the suite has seen so far."""

    outcomes: list[Outcome] = field(default_factory=list)
    graphs: dict[str, bool] = field(default_factory=dict)
    launched: set[str] = field(default_factory=set)


FINDINGS = pytest.StashKey[Findings]()


def _why_not() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    capability = torch.cuda.get_device_capability()
    return "" if capability >= (7, 0) else f"compute capability {capability[0]}.{capability[1]} is older than 7.0"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FINDINGS] = Findings()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    of_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if of_gpus and (why := _why_not()):
        for item in of_gpus:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("SM70_GPU_RECORD")
    if not path or _why_not():
        return
    import torch
    from cuda.bindings import driver

    from sm70_kernels.proof.record import Host, compose

    findings = session.config.stash[FINDINGS]
    _, version = driver.cuDriverGetVersion()
    capability = torch.cuda.get_device_capability()
    host = Host(
        gpu=torch.cuda.get_device_name(),
        capability=f"{capability[0]}.{capability[1]}",
        driver=_driver_version(version),
        torch=torch.__version__,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    Path(path).write_text(compose(host, findings.outcomes, findings.launched, findings.graphs), encoding="utf-8")


def _driver_version(cuda: int) -> str:
    """Return the driver's own version where the kernel module tells it, else the CUDA version that it offers."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        return next(word for word in line.split() if word.count(".") >= 1 and word[0].isdigit())
    except (OSError, IndexError, StopIteration):
        return f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"


@pytest.fixture
def findings(request: pytest.FixtureRequest) -> Findings:
    return request.config.stash[FINDINGS]


@pytest.fixture(autouse=True, scope="session")
def awaiting_kernels() -> None:
    """Run the kernels that no GPU has run yet: this suite is what they await."""
    from sm70_kernels import dispatch, families
    from sm70_kernels.launch import module

    list(families.modules("operator"))
    dispatch.try_awaiting()
    module.take_cubins_on_turing()


@pytest.fixture(autouse=True)
def launched(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test, note which specialisations have been launched."""
    from sm70_kernels.launch import launcher

    yield
    request.config.stash[FINDINGS].launched.update(spec.name for spec, _ in launcher._FUNCTIONS)
