"""Pastes in UTF-16, as PowerShell redirects them, and as tables of Markdown."""

from __future__ import annotations

import codecs
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.paths import TOPOLOGIES
from appliance.topology.nvidia_smi import parse_matrix
from appliance.topology.recorded import load

DATA = Path(__file__).with_name("data")
ENCODINGS = {
    "little-endian": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "big-endian": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "little-endian without a mark": (b"", "utf-16-le"),
    "big-endian without a mark": (b"", "utf-16-be"),
    "UTF-8 with a mark": (codecs.BOM_UTF8, "utf-8"),
}


def rewrite(path: Path, folder: Path, encoding: str) -> Path:
    mark, name = ENCODINGS[encoding]
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_bytes(mark + path.read_text().encode(name))
    return folder / path.name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_matrix_and_its_xml(tmp_path: Path, encoding: str) -> None:
    text = rewrite(DATA / "4xv100_sxm2.txt", tmp_path / "utf", encoding)
    rewrite(DATA / "4xv100_sxm2.xml", tmp_path / "utf", encoding)
    assert load(text) == load(DATA / "4xv100_sxm2.txt")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_recording(tmp_path: Path, encoding: str) -> None:
    path = TOPOLOGIES / "2xv100-sxm2-32gb.json"
    assert load(rewrite(path, tmp_path, encoding)) == load(path)


def test_xml_in_utf16_that_declares_utf8(tmp_path: Path) -> None:
    """PowerShell encodes anew what nvidia-smi wrote, and leaves the declaration."""
    for name in ("4xv100_sxm2.txt", "4xv100_sxm2.xml"):
        (tmp_path / name).write_text((DATA / name).read_text())
    xml = tmp_path / "4xv100_sxm2.xml"
    body = xml.read_text()
    declared = '<?xml version="1.0" encoding="UTF-8" ?>' + body[body.index("?>") + 2 :]
    xml.write_bytes(declared.encode("utf-16"))
    assert load(tmp_path / "4xv100_sxm2.txt") == load(DATA / "4xv100_sxm2.txt")


def as_markdown(text: str, *, corner: str = "", bold: bool = False) -> str:
    """The GPU matrix of `text`, whose cells are divided by tabs, as a table of Markdown."""
    header, *rows = [line for line in text.splitlines() if "GPU0" in line or line.startswith(("GPU", "NIC"))]
    table = [[corner, *(cell.strip() for cell in header.split("\t")[1:])]]
    table += [[cell.strip() for cell in row.split("\t")] for row in rows]
    if bold:
        table = [
            [f"**{row[0]}**" if row[0] else "", *(f"`{cell}`" if cell else "" for cell in row[1:])] for row in table
        ]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "My machine:\n\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("corner", ["", "from / to", "GPU"])
@pytest.mark.parametrize("bold", [False, True])
def test_a_table_of_markdown(corner: str, bold: bool) -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\tX\tNV2\tPHB\tPIX\t0-19\t0\n"
        "GPU1\tNV2\tX\tSYS\tPIX\t0-19\t0\n"
        "GPU2\tPHB\tSYS\tX\tPIX\t20-39\t1\n"
        "mlx5_0\tPIX\tPIX\tPIX\tX\t\t\n"
    )
    plain = parse_matrix(text, "plain")
    assert plain is not None
    assert plain.numa_nodes == (0, 0, 1)
    assert parse_matrix(as_markdown(text, corner=corner, bold=bold), "table") == plain


def test_a_table_without_outer_bars_and_with_empty_affinities() -> None:
    text = "GPU | GPU0 | GPU1 | CPU Affinity\n--- | --- | --- | ---\nGPU0 | X | SYS |\nGPU1 | SYS | X |\n"
    found = parse_matrix(text, "table")
    assert found is not None
    assert [[link.kind for link in row] for row in found.links] == [["self", "sys"], ["sys", "self"]]


def test_a_quoted_table_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "issue.md"
    path.write_text("> | | GPU0 | GPU1 |\n> |-|-|-|\n> | GPU0 | X | NV2 |\n> | GPU1 | NV2 | X |\n")
    plain = tmp_path / "plain.md"
    plain.write_text("\tGPU0\tGPU1\nGPU0\tX\tNV2\nGPU1\tNV2\tX\n")
    assert replace(load(path), name="plain", notes=()) == replace(load(plain), notes=())
