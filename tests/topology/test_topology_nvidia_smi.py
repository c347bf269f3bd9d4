"""Pasted output of nvidia-smi, as terminals, issues and mails leave it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigurationError
from appliance.paths import TOPOLOGIES
from appliance.topology.islands import best_set
from appliance.topology.machine import Link
from appliance.topology.nvidia_smi import Matrix, capability_of, parse_matrix, parse_query
from appliance.topology.recorded import load

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).with_name("data")
NV2 = Link("nvlink", 2)


def matrix(text: str) -> Matrix:
    found = parse_matrix(text, "topo.txt")
    assert found is not None
    return found


def refusal(question: Callable[[], object]) -> str:
    """What a ConfigurationError says; nothing when there is none."""
    try:
        question()
    except ConfigurationError as error:
        return str(error)
    return ""


def test_tabs_underline_nics_and_numa() -> None:
    found = matrix((DATA / "4xv100_sxm2.txt").read_text())
    assert found.indices == (0, 1, 2, 3)
    assert found.links[1] == (NV2, Link("self"), NV2, NV2)
    assert found.numa_nodes == (0, 0, 1, 1)


def test_a_terminal_paste_of_a_dgx1_gives_the_links_that_the_recording_has() -> None:
    found = matrix((DATA / "8xv100_dgx1_terminal.txt").read_text())
    recorded = load(TOPOLOGIES / "8xv100-dgx1.json")
    assert [[(link.kind, link.nvlinks) for link in row] for row in found.links] == [
        [(link.kind, link.nvlinks) for link in row] for row in recorded.links
    ]
    assert found.numa_nodes == (None,) * 8, "this old table has no NUMA column"
    assert best_set(load(DATA / "8xv100_dgx1_terminal.txt"), 4).gpus == (0, 1, 2, 3)


def test_a_quoted_mail_with_windows_line_ends_and_a_range_of_nodes() -> None:
    found = matrix((DATA / "2xv100_pcie_quoted.txt").read_bytes().decode())
    assert found.links == ((Link("self"), Link("phb")), (Link("phb"), Link("self")))
    assert found.numa_nodes == (None, None)


def test_one_gpu() -> None:
    found = matrix((DATA / "1xt4.txt").read_text())
    assert (found.indices, found.links, found.numa_nodes) == ((0,), ((Link("self"),),), (0,))


def test_a_header_without_affinity_and_the_old_word_for_sys() -> None:
    assert matrix("  GPU0 GPU1\nGPU0 X SOC\nGPU1 SOC X\n").links[0][1] == Link("sys")


def test_only_the_first_of_two_tables_counts() -> None:
    text = "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1 X\n\n"
    assert matrix(text + text.replace("NV1", "SYS")).links[0][1] == Link("nvlink", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU0 GPU1\nGPU0 X NV1\n", "topo.txt: the row of GPU1 is missing; give the whole table"),
        ("GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1\n", "topo.txt: the row of GPU1 is cut short; give the whole table"),
        ("GPU0 GPU1\nGPU0 NV1 X\nGPU1 NV1 X\n", 'topo.txt: "NV1" from GPU0 to GPU0: the columns do not fit the rows'),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 NV1 X\n", 'topo.txt: "X" from GPU0 to GPU1: the columns do not fit the rows'),
        (
            "GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n",
            "topo.txt: GPU0 to GPU1 and back are not the same link; give the table unedited",
        ),
        ("GPU1 GPU0\nGPU0 X NV1\n", "topo.txt: the header of the GPU matrix names a GPU twice or out of order"),
        ("GPU0 GPU0\nGPU0 X NV1\n", "topo.txt: the header of the GPU matrix names a GPU twice or out of order"),
        (
            "GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n",
            'topo.txt: "NV0" from GPU0 to GPU1; the table of `nvidia-smi topo -m` is wanted, whose links are NV1, '
            "NV2 … and PIX, PXB, PHB, NODE, SYS, SOC",
        ),
    ],
)
def test_a_table_that_is_not_whole(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_matrix(text, "topo.txt")
    assert str(error.value) == message


def test_the_table_of_peer_access_is_told_apart() -> None:
    with pytest.raises(ConfigurationError, match='"OK" from GPU0 to GPU1; the table of `nvidia-smi topo -m` is wanted'):
        parse_matrix((DATA / "p2p_read.txt").read_text(), "topo.txt")


@pytest.mark.parametrize("text", ["", "GPU", "no GPU0 here", "Legend:\n\n  X = Self\n"])
def test_text_without_a_table(text: str) -> None:
    assert parse_matrix(text, "topo.txt") is None


WORDS = [
    "GPU0",
    "GPU1",
    "GPU00",
    "GPU",
    "NIC0",
    "mlx5_0",
    "CPU",
    "NUMA",
    "X",
    "NV1",
    "SYS",
    "OK",
    "0-3",
    "0",
    "\n",
    ">",
]


@given(st.lists(st.sampled_from(WORDS), max_size=24).map(" ".join) | st.text(max_size=80))
def test_no_text_does_worse_than_an_error_of_one_line(text: str) -> None:
    assert refusal(lambda: parse_matrix(text, "topo.txt")).count("\n") == 0


def test_the_query_of_four_v100() -> None:
    query = parse_query((DATA / "4xv100_sxm2.xml").read_bytes(), "q.xml")
    assert query.driver == "570.172.08"
    assert [gpu.index for gpu in query.gpus] == [0, 1, 2, 3]
    gpu = query.gpus[3]
    assert (gpu.name, gpu.capability, gpu.memory_bytes) == ("Tesla V100-SXM2-16GB", (7, 0), 16160 * 2**20)
    assert (gpu.uuid, gpu.mig, gpu.ecc) == ("GPU-00000000-0000-0000-0000-000000000003", None, True)
    assert gpu.compute_mode == "Exclusive_Process"


def test_a_prompt_before_the_xml_is_passed_over() -> None:
    data = b"$ nvidia-smi -q -x\n" + (DATA / "1xt4.xml").read_bytes()
    (gpu,) = parse_query(data, "q.xml").gpus
    assert (gpu.capability, gpu.ecc) == ((7, 5), False)


def test_mig_and_a_gpu_that_is_ill() -> None:
    data = (
        b"<nvidia_smi_log><driver_version>580.95.05</driver_version>"
        b"<gpu><product_name>NVIDIA A100-SXM4-80GB</product_name><product_architecture>Ampere</product_architecture>"
        b"<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><fb_memory_usage>"
        b"<total>9728 MiB</total></fb_memory_usage></mig_device></mig_devices>"
        b"<fb_memory_usage><total>81920 MiB</total></fb_memory_usage></gpu>"
        b"<gpu><product_name>GPU is lost</product_name><uuid>GPU is lost</uuid><fb_memory_usage>"
        b"<total>GPU is lost</total></fb_memory_usage><ecc_mode><current_ecc>N/A</current_ecc></ecc_mode></gpu>"
        b"</nvidia_smi_log>"
    )
    healthy, ill = parse_query(data, "q.xml").gpus
    assert (healthy.mig, healthy.memory_bytes, healthy.capability) == (True, 81920 * 2**20, (8, 0))
    assert (ill.name, ill.uuid, ill.memory_bytes, ill.ecc, ill.capability) == ("unknown", None, None, None, None)


DOCTYPE = b'<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd" '


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "q.xml: not the XML of `nvidia-smi -q -x`"),
        (b"\x00\x01\x02", "q.xml: not the XML of `nvidia-smi -q -x`"),
        (b"<?xml version='1.0'?><html/>", "q.xml: <html> is not the XML of `nvidia-smi -q -x`"),
        (b"<nvidia_smi_log><gpu>", "q.xml: not the XML of `nvidia-smi -q -x`: no element found: line 1, column 21"),
        (
            b'<?xml version="1.0" encoding="klingon"?><nvidia_smi_log/>',
            "q.xml: not the XML of `nvidia-smi -q -x`: unknown encoding: klingon",
        ),
        (
            DOCTYPE + b'[<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>',
            'q.xml: declares the entity "a"; nvidia-smi never does',
        ),
        (
            DOCTYPE + b'[<!ENTITY f SYSTEM "file:///etc/hostname">]><nvidia_smi_log>&f;</nvidia_smi_log>',
            'q.xml: declares the entity "f"; nvidia-smi never does',
        ),
        (
            DOCTYPE + b'[<!ENTITY % p SYSTEM "http://127.0.0.1:9/p.dtd"> %p;]><nvidia_smi_log/>',
            'q.xml: declares the entity "p"; nvidia-smi never does',
        ),
    ],
)
def test_xml_that_is_not_nvidia_smis(data: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_query(data, "q.xml")
    assert str(error.value) == message


@given(st.binary(max_size=60))
def test_no_bytes_do_worse_than_an_error_of_one_line(data: bytes) -> None:
    for start in (b"", b"<?xml ", b"<nvidia_smi_log>", DOCTYPE):
        assert refusal(partial(parse_query, start + data, "q.xml")).count("\n") == 0


@pytest.mark.parametrize(
    ("name", "architecture", "capability"),
    [
        ("Tesla V100-SXM2-16GB", None, (7, 0)),
        ("Tesla V100S-PCIE-32GB", None, (7, 0)),
        ("Tesla PG503-216", "Volta", (7, 0)),
        ("NVIDIA TITAN V", None, (7, 0)),
        ("Quadro GV100", None, (7, 0)),
        ("Tesla T4", None, (7, 5)),
        ("NVIDIA GeForce RTX 2080 Ti", "Turing", (7, 5)),
        ("NVIDIA A100-SXM4-80GB", "Ampere", (8, 0)),
        ("NVIDIA A10", "Ampere", (8, 6)),
        ("NVIDIA L40S", "Ada Lovelace", (8, 9)),
        ("NVIDIA H200", None, (9, 0)),
        ("NVIDIA GeForce RTX 3090", "Ampere", None),
        ("unknown", None, None),
    ],
)
def test_capability_by_name(name: str, architecture: str | None, capability: tuple[int, int] | None) -> None:
    assert capability_of(name, architecture) == capability
