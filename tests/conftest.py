"""Puts this folder on the import path: tests in its subfolders share `requirement`. Shares the tests out, too."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what starts real engines and containers one after the other, while another worker runs the rest."""
    for item in items:
        if item.get_closest_marker("engine") or item.get_closest_marker("image"):
            item.add_marker(pytest.mark.xdist_group("engines"))
