"""A file is replaced whole, or stands as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance import whole_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for text in ("first\n", "ü\n"):
        whole_file.write(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_replaced_stands_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    (tmp_path / "folder" / "kept").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        whole_file.write(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
