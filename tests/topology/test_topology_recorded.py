"""Recorded machines: what is read back, and one precise line for every file that is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import CheckError, ConfigurationError
from appliance.paths import TOPOLOGIES
from appliance.topology.machine import Gpu, Host, Link, Machine
from appliance.topology.recorded import layout, load, save

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).with_name("data")


def message(path: Path, smi_xml: Path | None = None) -> str:
    """The one line that `load` ends with, without the path that it begins with."""
    with pytest.raises(ConfigurationError) as error:
        load(path, smi_xml)
    text = str(error.value)
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def record(name: str = "2xv100-sxm2-32gb") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((TOPOLOGIES / f"{name}.json").read_text())
    return loaded


@pytest.fixture
def file(tmp_path: Path) -> Callable[[object], Path]:
    def write(value: object) -> Path:
        path = tmp_path / "machine.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return path

    return write


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    machine = Machine(
        "box",
        "NVML",
        (Gpu(0, "Tesla V100-SXM2-16GB", (7, 0), 16160 * 2**20, "GPU-0", mig=False), Gpu(2, "unknown", None, None)),
        (
            (Link("self"), Link("nvlink", 2, 2, True)),
            (Link("nvlink", 2, 2, peer_access=False), Link("self")),
        ),
        "570.172.08",
        Host(cpus=40, shm_bytes=2**36),
        ("GPU 1 is gone: «lost»",),
    )
    save(machine, tmp_path / "box.json")
    assert load(tmp_path / "box.json") == machine
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


def test_keys_that_may_be_unknown_may_be_left_out(file: Callable[[object], Path]) -> None:
    value = {"schema": 1, "name": "box", "source": "by hand", "gpus": [], "links": []}
    assert load(file(value)) == Machine("box", "by hand")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(b"\xef\xbb\xbf" + (TOPOLOGIES / "none.json").read_bytes())
    assert load(path).name == "none"


def set_in(value: dict[str, Any], keys: list[str | int], new: object) -> dict[str, Any]:
    inner: Any = value
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = new
    return value


@pytest.mark.parametrize(
    ("keys", "new", "wanted"),
    [
        (["schema"], 2, "schema: 2, wanted 1, the only one there is"),
        (["schema"], True, "schema: true, wanted 1, the only one there is"),
        (["drivers"], "570", 'unknown key "drivers"; did you mean "driver"?'),
        (["name"], None, "name: null, wanted a text of one line"),
        (["name"], "two\nlines", 'name: "two\\nlines", wanted a text of one line'),
        (["name"], "\udc80", 'name: "\\udc80", wanted a text of one line'),
        (["gpus"], {}, "gpus: {}, wanted a list"),
        (["gpus", 1], "V100", 'gpus[1]: "V100", wanted an object'),
        (["gpus", 1, "memory"], 1, 'gpus[1]: unknown key "memory"; did you mean "memory_bytes"?'),
        (
            ["gpus", 1, "memory_bytes"],
            "32 GB",
            'gpus[1].memory_bytes: "32 GB", wanted a whole number, 0 or more and below 2^63',
        ),
        (["gpus", 0, "memory_bytes"], -1, "gpus[0].memory_bytes: -1, wanted a whole number, 0 or more and below 2^63"),
        (
            ["gpus", 0, "memory_bytes"],
            1.5,
            "gpus[0].memory_bytes: 1.5, wanted a whole number, 0 or more and below 2^63",
        ),
        (["gpus", 0, "index"], True, "gpus[0].index: true, wanted a whole number, 0 or more and below 2^63"),
        (["gpus", 0, "index"], 1, "gpus[1].index: 1 after 1; wanted ascending order, none twice"),
        (["gpus", 0, "capability"], 7.0, "gpus[0].capability: 7.0, wanted a list"),
        (["gpus", 0, "capability"], [7], "gpus[0].capability: [7], wanted [MAJOR, MINOR] such as [7, 0]"),
        (
            ["gpus", 0, "capability"],
            [7, "0"],
            'gpus[0].capability[1]: "0", wanted a whole number, 0 or more and below 2^63',
        ),
        (["gpus", 0, "ecc"], "on", 'gpus[0].ecc: "on", wanted true or false'),
        (["host", "shm"], 1, 'host: unknown key "shm"'),
        (["host"], [], "host: [], wanted an object"),
        (["notes"], ["a", 1], "notes[1]: 1, wanted a text of one line"),
        (["links"], [], "links: wanted one row for each of 2 GPUs, each of 2 links"),
        (["links", 1], [{"kind": "self"}], "links: wanted one row for each of 2 GPUs, each of 2 links"),
        (["links", 0, 1], {}, 'links[0][1]: the key "kind" is missing'),
        (
            ["links", 0, 1, "kind"],
            "NV2",
            'links[0][1].kind: "NV2", wanted one of self, nvlink, pix, pxb, phb, node, sys, unknown',
        ),
        (["links", 0, 1, "kind"], ["nvlink"], None),
        (["links", 0, 1, "kind"], "self", 'links[0][1].kind: "self", wanted a link to another GPU'),
        (["links", 0, 0, "kind"], "sys", 'links[0][0].kind: "sys", wanted "self"'),
        (
            ["links", 0, 1, "nvlinks"],
            0,
            'links[0][1].nvlinks: 0 with kind "nvlink"; NVLink counts at least 1 and PCIe 0',
        ),
        (["links", 0, 1, "nvlinks"], 1, "links[0][1]: nvlink 1 there but nvlink 2 back in links[1][0]"),
    ],
)
def test_a_wrong_key_is_named(
    keys: list[str | int], new: object, wanted: str | None, file: Callable[[object], Path]
) -> None:
    found = message(file(set_in(record(), keys, new)))
    if wanted is not None:
        assert found == wanted


def test_a_long_value_is_cut(file: Callable[[object], Path]) -> None:
    assert message(file({**record(), "driver": ["5" * 500]})) == f'driver: ["{"5" * 55}..., wanted a text of one line'


def test_a_missing_key_is_named(file: Callable[[object], Path]) -> None:
    value = record()
    del value["gpus"][0]["memory_bytes"]
    assert message(file(value)) == 'gpus[0]: the key "memory_bytes" is missing'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"schema": 1,', "not JSON: Expecting property name enclosed in double quotes at line 1"),
        ("{}", "schema: null, wanted 1, the only one there is"),
        ('{"a": ' + "[" * 100_000, "not a recorded machine: numbers too long or nested too deep"),
        ('{"a": ' + "1" * 5000 + "}", "not a recorded machine: numbers too long or nested too deep"),
        (
            "[]",
            "neither a recorded machine in JSON nor the text of `nvidia-smi topo -m`; `appliance topology --save FILE` "
            "writes the one, `nvidia-smi topo -m > FILE` the other",
        ),
        (
            "<?xml version='1.0'?>",
            "neither a recorded machine in JSON nor the text of `nvidia-smi topo -m` (this is XML: give it as "
            "--smi-xml, beside that text); `appliance topology --save FILE` writes the one, `nvidia-smi topo -m > "
            "FILE` the other",
        ),
    ],
)
def test_a_file_that_is_no_machine(text: str, wanted: str, file: Callable[[object], Path]) -> None:
    assert message(file(text)) == wanted


@pytest.mark.parametrize("data", [b"", b"\x00" * 100, b"\x7fELF\x02\x01\x01", bytes(range(256)) * 8])
def test_binary_files(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "topo.bin"
    path.write_bytes(data)
    assert message(path).startswith("neither a recorded machine in JSON nor")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert message(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    endless = Path("/dev/zero")
    assert message(endless) == "larger than 16 MiB, so no description of a machine"


def test_a_missing_file_names_the_shipped_one_that_is_meant(tmp_path: Path) -> None:
    assert message(Path("4xv100-sxm2-16gb")) == (
        f'no file 4xv100-sxm2-16gb; did you mean "{TOPOLOGIES / "4xv100-sxm2-16gb.json"}"?'
    )
    assert message(tmp_path / "zzz") == f"no file {tmp_path / 'zzz'}; recorded machines are in {TOPOLOGIES}"


PLACES = [
    *("name", "gpus", "gpus.1", "gpus.1.name", "gpus.1.capability", "host", "host.cpus", "notes", "driver"),
    *("links", "links.0", "links.0.1", "links.0.1.nvlinks", "links.0.1.kind"),
]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    place=st.sampled_from(PLACES),
)
def test_no_value_does_worse_than_an_error_of_one_line(
    value: object, place: str, file: Callable[[object], Path]
) -> None:
    keys: list[str | int] = [int(word) if word.isdigit() else word for word in place.split(".")]
    path = file(set_in(record(), keys, value))
    try:
        text = load(path).name
    except ConfigurationError as error:
        text = str(error)
    assert text.isprintable()


def test_the_matrix_alone_says_what_is_missing_and_how_to_give_it() -> None:
    machine = load(DATA / "8xv100_dgx1_terminal.txt")
    assert machine.name == "8xv100_dgx1_terminal"
    assert machine.source == "nvidia-smi topo -m"
    assert machine.gpus[7] == Gpu(7, "unknown", None, None)
    assert machine.driver is None
    assert machine.host == Host()
    assert machine.notes == (
        "names, memory, compute capability and driver are unknown: save `nvidia-smi -q -x` as "
        "8xv100_dgx1_terminal.xml beside this file, or give it with --smi-xml",
        "CPUs, host memory and /dev/shm are unknown: nvidia-smi does not tell them",
    )


def test_the_matrix_with_the_query_beside_it() -> None:
    machine = load(DATA / "4xv100_sxm2.txt")
    assert machine.source == "nvidia-smi topo -m and -q -x"
    assert machine.driver == "570.172.08"
    assert (machine.gpus[2].name, machine.gpus[2].numa_node) == ("Tesla V100-SXM2-16GB", 1)
    assert machine.notes == ("CPUs, host memory and /dev/shm are unknown: nvidia-smi does not tell them",)


def test_the_query_from_another_path(tmp_path: Path) -> None:
    text = tmp_path / "pasted"
    text.write_bytes((DATA / "4xv100_sxm2.txt").read_bytes())
    assert load(text).driver is None
    assert load(text, smi_xml=DATA / "4xv100_sxm2.xml").driver == "570.172.08"


def test_a_matrix_in_a_file_called_xml_is_not_its_own_query(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_bytes((DATA / "1xt4.txt").read_bytes())
    assert load(path).source == "nvidia-smi topo -m"


def test_a_recording_made_from_pasted_text_loads(tmp_path: Path) -> None:
    machine = load(DATA / "4xv100_sxm2.txt")
    save(machine, tmp_path / "saved.json")
    assert load(tmp_path / "saved.json") == machine


def test_files_that_do_not_belong_together() -> None:
    matrix, query = DATA / "4xv100_sxm2.txt", DATA / "1xt4.xml"
    assert message(matrix, query) == f"{query} has 1 GPUs and {matrix} has 4; take both from one machine"
    whole = TOPOLOGIES / "none.json"
    assert message(whole, query) == (
        f"{query}: XML of nvidia-smi goes with the text of `nvidia-smi topo -m`; {whole} is already a whole recorded "
        "machine"
    )
    assert message(matrix, DATA / "none.xml").startswith(f"no file {DATA / 'none.xml'}")


def test_cards_that_the_query_does_not_tell_enough_about(tmp_path: Path) -> None:
    query = tmp_path / "q.xml"
    query.write_text("<nvidia_smi_log><gpu><product_name>NVIDIA X1</product_name></gpu></nvidia_smi_log>")
    notes = load(DATA / "1xt4.txt", query).notes
    assert notes[0].startswith('GPU 0: the compute capability of "NVIDIA X1" is not known here')
    assert notes[1] == f"GPU 0: {query} does not tell its memory"


def test_save_replaces_whole_or_not_at_all(tmp_path: Path) -> None:
    machine = load(TOPOLOGIES / "none.json")
    with pytest.raises(CheckError) as error:
        save(machine, tmp_path / "missing" / "box.json")
    assert str(error.value) == (
        f"cannot write {tmp_path / 'missing' / 'box.json'}: No such file or directory; name a file in a folder with "
        "room to write"
    )
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(CheckError, match="Is a directory"):
        save(machine, target)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_keeps_the_old_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "box.json"
    target.write_text("old")

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CheckError, match="No space left on device"):
        save(load(TOPOLOGIES / "none.json"), target)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=40),
        lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=9), inner, max_size=8),
        max_leaves=40,
    )
)
def test_layout_is_json_of_the_same_value(value: object) -> None:
    assert json.loads(layout(value)) == value


def test_layout_puts_what_fits_on_one_line() -> None:
    assert layout({"a": [1, 2], "b": {}}) == '{"a": [1, 2], "b": {}}'
    assert layout({"a": ["x" * 60] * 2, "b": 1}) == (
        '{\n  "a": [\n    "' + "x" * 60 + '",\n    "' + "x" * 60 + '"\n  ],\n  "b": 1\n}'
    )
