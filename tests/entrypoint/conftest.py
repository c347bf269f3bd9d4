"""Programs that a test starts, and that do not outlive it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start the module's `Run` in the test's folder, over the fake engine in the mode that is given."""
    runs: list[Any] = []

    def one(mode: str, **options: Any) -> Any:
        runs.append(request.module.Run(tmp_path, mode, **options))
        return runs[-1]

    yield one
    for run in runs:
        run.kill()
