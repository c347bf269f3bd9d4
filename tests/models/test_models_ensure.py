"""A model made present and proven, and `appliance models`: whichever way it comes, whole or one line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli
from appliance.errors import CheckError, ConfigurationError
from appliance.launch.plan import PlannedModel
from appliance.models import package
from appliance.models.ensure import ensure, prove
from appliance.models.progress import SilentProgress
from appliance.topology import live
from appliance.topology.machine import Host, Machine
from tests.models import fakehub
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SILENT = SilentProgress()


def safetensors(data: bytes) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


WEIGHTS = safetensors(os.urandom(100_000))
CONFIG = b'{"architectures": ["LlamaForCausalLM"]}'
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("APPLIANCE_", "HF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(live, "detect", lambda: Machine("this machine", "NVML", host=Host(memory_bytes=64 * 2**30)))


def hub() -> fakehub.Hub:
    return fakehub.Hub({"config.json": CONFIG, "model.safetensors": WEIGHTS}, {"model.safetensors"})


def planned(folder: Path, origin: str = "download", **more: Any) -> PlannedModel:
    model = PlannedModel(
        origin,
        str(folder),
        fakehub.REPOSITORY,
        fakehub.REVISION,
        "unquantized",
        {"model.safetensors": SHA256},
        "profile tiny",
    )
    return replace(model, **more)


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_ends_in_a_proven_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models/tiny@aaaaaaaaaaaa"
    with fakehub.running(hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        found = ensure(planned(folder), offline=False, progress=SILENT)
        assert found.remembered == ("config.json", "model.safetensors")
        assert found.unpublished == ()
        served.requests.clear()
        ensure(planned(folder), offline=False, progress=SILENT)
        assert served.requests == []
    assert names(folder) == [".sha256-stamp.json", "SOURCE.json", "config.json", "model.safetensors"]
    assert names(folder.parent) == [f".{folder.name}.lock", folder.name]
    record = json.loads((folder / "SOURCE.json").read_text())
    assert (record["repository"], record["revision"]) == (fakehub.REPOSITORY, fakehub.REVISION)


def test_a_download_that_fails_leaves_no_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models/tiny"
    bad = hub()
    bad.served["model.safetensors"] = bytes(len(WEIGHTS))
    with fakehub.running(bad) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        with pytest.raises(CheckError, match=r"model\.safetensors came with hash"):
            ensure(planned(folder), offline=False, progress=SILENT)
    assert sorted(names(folder.parent)) == [".tiny.lock", ".tiny.partial"]


def test_an_empty_folder_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models/tiny"
    folder.mkdir(parents=True)
    with fakehub.running(hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        ensure(planned(folder), offline=False, progress=SILENT)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_offline_tries_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models/tiny"
    with fakehub.running(hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        with pytest.raises(CheckError) as caught:
            ensure(planned(folder), offline=True, progress=SILENT)
        assert served.requests == []
    assert str(caught.value) == (
        f"maker/tiny is not in {folder} and offline was asked for; fetch it where there is a network "
        f"(`appliance models fetch --profile tiny --models-dir DIR`) and copy DIR/tiny there"
    )
    put(folder)
    ensure(planned(folder), offline=True, progress=SILENT)


def test_a_folder_of_one_s_own_is_used_as_it_is(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    found = ensure(planned(folder, "folder", files={}), offline=True, progress=SILENT)
    assert found.unpublished == ("config.json", "model.safetensors")
    assert names(folder) == ["config.json", "model.safetensors"]


def test_a_folder_with_a_wrong_hash(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(safetensors(bytes(100_000)))
    with pytest.raises(CheckError, match=rf"model\.safetensors in .* has SHA-256 .*…, wanted {SHA256[:12]}…"):
        ensure(planned(folder, "folder"), offline=True, progress=SILENT)


def test_a_half_copied_file(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-10])
    with pytest.raises(CheckError, match=r"model\.safetensors: has .* bytes and its header says .*; download it again"):
        ensure(planned(folder), offline=True, progress=SILENT)


def test_a_checkpoint_of_another_kind(tmp_path: Path) -> None:
    folder = put(tmp_path / "mine")
    with pytest.raises(ConfigurationError, match=r"is unquantized, the profile wants nvfp4; choose another profile"):
        ensure(planned(folder, kind="nvfp4"), offline=True, progress=SILENT)


def test_a_model_without_a_revision_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"profile tiny: maker/tiny has no revision; give the full commit id"):
        ensure(planned(tmp_path / "models/tiny", revision=None), offline=False, progress=SILENT)


def test_what_is_not_there_cannot_be_proven(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"/no is not there; `appliance models fetch` brings it"):
        prove(planned(tmp_path / "no"), progress=SILENT)


def test_two_at_once_convert_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = tmp_path / "models/tiny", tmp_path / "log"
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(WEIGHTS)
    program = (
        "import sys, time; from pathlib import Path\n"
        "weights, target = map(Path, sys.argv[1:])\n"
        f"Path({str(log)!r}).open('a').write('converted\\n')\n"
        "time.sleep(0.3)\n"
        "(target / 'model.safetensors').write_bytes(weights.read_bytes())\n"
        f"(target / 'config.json').write_bytes({CONFIG!r})\n"
    )
    monkeypatch.setattr(package, "_command", lambda *paths: [sys.executable, "-c", program, *map(str, paths)])
    monkeypatch.setattr(package, "_weights", lambda _: (weights, "1.2"))
    model = planned(folder, "package", revision=None, files={})
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: ensure(model, offline=True, progress=SILENT), range(3)))
    assert {len(one.remembered) for one in found} == {2}
    assert log.read_text() == "converted\n"
    assert names(folder.parent) == [".tiny.lock", "tiny"]


def test_a_fetch_that_is_killed_is_continued(tmp_path: Path) -> None:
    """The whole command, killed with the last file half there, and run again."""
    folder = tmp_path / "models/tiny"
    program = (
        "import sys; from pathlib import Path\n"
        "from appliance.launch.plan import PlannedModel\n"
        "from appliance.models.ensure import ensure\n"
        "from appliance.models.progress import SilentProgress\n"
        f"rest = ({fakehub.REPOSITORY!r}, {fakehub.REVISION!r}, 'unquantized', {{}}, 'p')\n"
        "model = PlannedModel('download', sys.argv[1], *rest)\n"
        "ensure(model, offline=False, progress=SilentProgress())\n"
    )
    large = safetensors(os.urandom(21 << 20))
    slow = fakehub.Hub({"config.json": CONFIG, "model.safetensors": large}, {"model.safetensors"})
    slow.hang_after["model.safetensors"] = 11 << 20
    with fakehub.running(slow) as served:
        environment = {**os.environ, "HF_ENDPOINT": served.url}
        command = [sys.executable, "-c", program, str(folder)]
        process = subprocess.Popen(command, env=environment)
        part = folder.parent / ".tiny.partial/.parts/model.safetensors"
        until(lambda: part.exists() and part.stat().st_size >= 10 << 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not folder.exists()
        assert part.stat().st_size == 10 << 20
        served.hang_after.clear()
        served.requests.clear()
        subprocess.run(command, env=environment, check=True)
    assert served.ranges("model.safetensors") == [f"bytes={10 << 20}-"]
    assert (folder / "model.safetensors").read_bytes() == large


def models(*words: str) -> int:
    return cli.main(["models", *words])


PROFILE = """\
name: tiny
title: a tiny model from a hub on the loopback interface
engine: portable
rank: 1
served_model_name: tiny
architectures: [LlamaForCausalLM]
model:
  repository: maker/tiny
  revision: {revision}
  kind: unquantized
  files: {{model.safetensors: {{sha256: {sha256}}}}}
needs: {{gpus: 0}}
memory:
  geometry: {{layers_full_attention: 1, kv_heads: 1, head_dim: 64}}
  weights: {figure}
  workspaces: {figure}
  graphs: {figure}
  headroom: {figure}
  guarantee_requests: 1
  guarantee_tokens: 128
arguments:
  {{dtype: bfloat16, max_model_len: 128, max_num_batched_tokens: 128, max_num_seqs: 1, block_size: 128,
    skip_tokenizer_init: true, generation_config: vllm}}
environment: {{VLLM_CPU_KVCACHE_SPACE: "1"}}
health: {{start: 10, progress: 10, stall_grace: 10, drain: 10}}
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    figure = "{value: 1, unit: MiB, provenance: chosen, source: test}"
    path.write_text(PROFILE.format(revision=fakehub.REVISION, sha256=SHA256, figure=figure))
    return str(path)


def test_fetch_and_verify(
    tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--profile", profile, "--state-dir", str(tmp_path / "state")]
    with fakehub.running(hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        assert models("fetch", *words) == 0
    folder = tmp_path / "state/models" / f"maker--tiny@{fakehub.REVISION[:12]}"
    shown = capsys.readouterr()
    assert shown.out == (
        f"model: maker/tiny in {folder}: 2 of 2 files have the SHA-256 they must have "
        "(2 unchanged since they were read)\n"
    )
    assert shown.err.startswith("downloading maker/tiny: 0 B of 100.1 kB (0 %)\n")
    assert models("verify", "--json", *words) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert shown.err == ""
    assert (record["schema"], record["profile"]) == (1, "tiny")
    assert record["models"]["model"]["read"] == ["config.json", "model.safetensors"]
    assert record["models"]["model"]["revision"] == fakehub.REVISION
    damaged = bytearray(WEIGHTS)
    damaged[-1] ^= 1
    status = (folder / "model.safetensors").stat()
    (folder / "model.safetensors").write_bytes(damaged)
    os.utime(folder / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert models("verify", *words) == 1
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith(f"appliance: model.safetensors in {folder} has SHA-256 ")


@pytest.mark.parametrize("by", ["HF_TOKEN", "file"])
def test_a_gated_model_is_fetched_with_the_token(
    by: str, tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gated = hub()
    gated.wanted_token = "hf_right"
    words = ["fetch", "--profile", profile, "--state-dir", str(tmp_path / "state")]
    with fakehub.running(gated) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        assert models(*words) == 1
        assert "is gated" in capfd.readouterr().err
        if by == "file":
            (tmp_path / "token").write_text("hf_right\n")
            words += ["--hf-token-file", str(tmp_path / "token")]
        else:
            monkeypatch.setenv("HF_TOKEN", "hf_right")
        assert models(*words) == 0
    assert gated.tokens[-1] == "Bearer hf_right"
    shown = capfd.readouterr()
    assert "hf_right" not in shown.out + shown.err
    for path in (tmp_path / "state").rglob("*"):
        assert path.is_dir() or b"hf_right" not in path.read_bytes(), path


def test_offline_is_one_line_and_status_1(tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models("fetch", "--offline", "--json", "--profile", profile, "--state-dir", str(tmp_path / "state")) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("appliance: maker/tiny is not in ")
    assert shown.err.count("\n") == 1


def test_a_profile_for_another_machine_can_be_fetched_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--offline", "--profile", "qwen38_27b_nvfp4_dflash2", "--state-dir", str(tmp_path)]
    assert models("fetch", *words) == 1
    assert "is not in" in capsys.readouterr().err


def test_a_folder_of_one_s_own_is_verified(tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = put(tmp_path / "mine")
    assert models("verify", "--profile", profile, "--model", str(folder), "--state-dir", str(tmp_path / "state")) == 0
    assert capsys.readouterr().out == (
        f"model: yours in {folder}: 0 of 2 files have the SHA-256 they must have; "
        "2 of 2 files have no published hash: sizes and headers checked\n"
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["verify", "--profile", "tinyy"], 'no profile "tinyy"'),
        (["verify", "--model", "/does/not/exist"], "/does/not/exist: does not exist"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], shown: str) -> None:
    assert models(*words) == 2
    error = capsys.readouterr().err
    assert shown in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["fetsch"], ["fetch", "--profil", "x"]])
def test_misspelt_actions_and_options_end_with_status_2(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        models(*words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
