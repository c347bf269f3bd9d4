"""A cache volume without a free byte: the engine serves, and everyone is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.system.containers.image_stack import BUILD_S, START_S, Stack
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_S + 2 * START_S)]

SMALL = {"volumes": {"cache": {"driver_opts": {"type": "tmpfs", "device": "tmpfs", "o": "size=4m,mode=1777"}}}}
CACHE = "/var/lib/appliance/cache"


@pytest.fixture(scope="module")
def stack(images: None, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The sidecar runs and holds a cache volume that is filled to the last byte; the engine starts on it."""
    with Stack(tmp_path_factory.mktemp("full"), models, override=SMALL) as started:
        started.up("sidecar")
        started.sh(f"cat /dev/zero >{CACHE}/fill 2>/dev/null || true", "sidecar")
        assert started.sh(f"df --output=avail {CACHE} | tail -n 1", "sidecar").strip() == "0"
        started.up("engine")
        yield started


def test_the_engine_serves_and_says_that_nothing_is_kept(stack: Stack) -> None:
    stack.wait_ready()
    assert stack.chat(4).status_code == 200
    outcome = stack.record("cache.json")
    assert (outcome["enabled"], outcome["reason"]) == (False, "disk_full"), outcome
    assert "compile cache off (disk_full)" in stack.log()


def test_every_probe_passes(stack: Stack) -> None:
    stack.wait_ready()
    until(lambda: stack.docker_health("engine") == "healthy")
    for name in ("startup", "live", "ready"):
        assert stack.probe(name)[0] == 0
        assert stack.health(name)[0] == 200
