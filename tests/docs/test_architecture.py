"""The paths that docs/architecture.md and CONTRIBUTING.md name are there."""

from __future__ import annotations

import re

import pytest

from appliance.paths import ROOT

TOP = (
    "appliance",
    "config",
    "docs",
    "entrypoint",
    "healthchecks",
    "kernels",
    "tests",
    "verification",
    "scripts",
    ".ci",
)
CREATED_BY_WHOEVER_NEEDS_IT = {"kernels/sm70_kernels/attention/table.py"}
"""The page says of it that a family's first tile creates it."""


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_that_the_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").split("\nThese parts of the target come later", 1)[0]
    paths = {
        path
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*|entrypoint|healthchecks|config|verification)`", text)
        if path.split("/")[0] in TOP and not re.search(r"\b[A-Z]{4,}\b", path)  # NAME and KIND stand for any
    } - CREATED_BY_WHOEVER_NEEDS_IT
    assert len(paths) > 10
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
