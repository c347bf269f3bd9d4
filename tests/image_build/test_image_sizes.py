"""The report of an image's layers, out of what `docker history` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from appliance.image import sizes

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = "\n".join(
    json.dumps(row)
    for row in (
        {"Size": "0", "CreatedBy": 'CMD ["serve"]', "Comment": "buildkit.dockerfile.v0"},
        {"Size": "2500000", "CreatedBy": "COPY . /opt/appliance # buildkit", "Comment": "buildkit.dockerfile.v0"},
        {
            "Size": "500000",
            "CreatedBy": "RUN /bin/sh -c mkdir -p  /models # buildkit",
            "Comment": "buildkit.dockerfile.v0",
        },
        {"Size": "74800000", "CreatedBy": "", "Comment": "Imported from -"},
    )
)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that prints the history of one image and knows no other."""
    (tmp_path / "history").write_text(HISTORY + "\n")
    program = tmp_path / "docker"
    program.write_text(
        f'#!/bin/sh\nfor image; do :; done\n[ "$image" = there ] && exec cat {tmp_path}/history\n'
        'echo "Error: No such image: $image" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return program


def test_layers_are_shown_from_the_first_on(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main(["there"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "     74.8 MB  Imported from -",
        "      0.5 MB  mkdir -p /models",
        "      2.5 MB  COPY . /opt/appliance",
        "     77.8 MB  there",
    ]


def test_layers_as_json(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main(["there", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["bytes"] == 77_800_000
    assert [layer["bytes"] for layer in record["layers"]] == [74_800_000, 500_000, 2_500_000]


def test_an_image_over_its_limit_is_told_with_both_sizes(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main(["there", "--most", "78"]) == 0
    assert capsys.readouterr().err == ""
    assert sizes.main(["there", "--most", "77"]) == 1
    assert capsys.readouterr().err == (
        "sizes: there has 77.8 MB; wanted at most 77 MB; the table shows which layer grew\n"
    )


def test_an_unknown_image_is_a_mistake_in_one_line(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main(["elsewhere"]) == 2
    assert capsys.readouterr().err == (
        'sizes: image "elsewhere": Error: No such image: elsewhere; wanted one that `docker images` lists\n'
    )


def test_a_machine_without_docker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sizes.main(["there"]) == 1
    assert "docker cannot be asked" in capsys.readouterr().err
