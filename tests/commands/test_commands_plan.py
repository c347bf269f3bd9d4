"""`appliance plan` as a person and a program meet it."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import cli
from appliance.launch.settings import SETTINGS
from appliance.paths import TOPOLOGIES
from tests.launch.launch_cases import write_serving_files

FOUR = ["--topology", str(TOPOLOGIES / "4xv100-sxm2-16gb.json")]
HELP = "`appliance plan --help` lists the options"
NONE = ["--topology", str(TOPOLOGIES / "none.json")]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment of whoever runs the tests."""
    for name in os.environ:
        if name.startswith(("APPLIANCE_", "VLLM_")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("complete_build")
def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *FOUR, "--json", "--port", "8100", "--", "--max-num-seqs", "2"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["schema"], plan["profile"]) == (1, "qwen38_27b_nvfp4_dflash2")
    assert plan["settings"]["port"] == {"value": 8100, "source": "command line"}
    assert plan["arguments"]["max_num_seqs"] == {"value": 2, "source": "vllm options"}
    assert plan["passthrough"] == ["--max-num-seqs", "2"]
    assert plan["settings"].keys() == SETTINGS.keys()


@pytest.mark.usefixtures("complete_build")
def test_text_has_every_value_with_its_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLIANCE_SIDECAR_PORT", "9001")
    monkeypatch.setenv("VLLM_LOGING_LEVEL", "DEBUG")
    assert cli.main(["plan", *FOUR, "--", "-tp", "4"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "qwen38_27b_nvfp4_dflash2: best fit",
        "not portable_smollm2: this machine has GPUs",
        "NVLink joins every pair of GPUs 0, 1, 2, 3",
        "4.07 GiB for KV",
        "9001  (environment APPLIANCE_SIDECAR_PORT)",
        "262144  (profile qwen38_27b_nvfp4_dflash2)",
        "4  (vllm options)",
        "0,1,2,3  (derived: the GPUs that the plan chose)",
        'environment VLLM_LOGING_LEVEL: vLLM 0.19.1 does not read it; did you mean "VLLM_LOGGING_LEVEL"?',
        " -m appliance.vllm_plugin.server.serve \\\n",
    ):
        assert line in shown


def test_the_generation_is_told_and_not_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    write_serving_files(model)
    words = ["plan", *NONE, "--model", str(model), "--state-dir", str(tmp_path / "state")]
    assert cli.main([*words, "--json"]) == 0
    cache = json.loads(capsys.readouterr().out)["compile_cache"]
    assert cache["problem"] is None
    assert cache["folder"] == str(tmp_path / "state" / "cache" / "generations" / cache["key"])
    assert cli.main(["cache", "key", *words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == cache["key"]
    assert cli.main([*words, "--cache-dir", str(tmp_path / "other")]) == 0
    shown = capsys.readouterr().out
    assert f"Compile cache\n  {tmp_path}/other/generations/{cache['key']}\n" in shown
    assert not (tmp_path / "state").exists()
    assert not (tmp_path / "other").exists()


def test_without_the_model_there_is_no_key_yet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["plan", *NONE, "--state-dir", str(tmp_path), "--json"]) == 0
    cache = json.loads(capsys.readouterr().out)["compile_cache"]
    assert cache["key"] is None
    assert "holds no config.json, so it has no cache key" in cache["problem"]


def test_the_table_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--settings"]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["plan", "--settings", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == SETTINGS.keys()
    for row in rows.values():
        assert f"{row['option']}  {row['variable']}\n" in shown
    assert rows["log_format"]["choices"] == ["plain", "json"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--prot", "1"], 2, f'"--prot" is no option; did you mean "--port"? options for vLLM go after --; {HELP}'),
        (["--seed=1"], 2, f'"--seed" is no option; options for vLLM go after --; {HELP}'),
        (["--port"], 2, f"argument --port: expected one argument; {HELP}"),
        ([*NONE, "--port", "x"], 2, 'command line: port is "x"; wanted a port from 1 to 65535'),
        ([*NONE, "extra"], 2, '"extra" is not expected here; options for vLLM go after --'),
        ([*NONE, "--", "--sed", "1"], 2, 'vllm options: vLLM 0.19.1 has no option "--sed"; did you mean "--seed"?'),
        (["--topology", "/dev/null/x"], 2, None),
        (["--topology", str(TOPOLOGIES / "1xh200.json")], 1, None),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    words: list[str], status: int, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = cli.main(["plan", *words])
    except SystemExit as error:
        ended = int(error.code or 0)
    said = capsys.readouterr()
    assert (ended, said.out) == (status, "")
    assert said.err.count("\n") == 1
    assert said.err.startswith("appliance: ")
    if message is not None:
        assert said.err == f"appliance: {message}\n"


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for setting in SETTINGS.values():
        assert setting.option in shown


@pytest.mark.parametrize("recording", sorted(path.name for path in TOPOLOGIES.glob("*.json")))
def test_a_plan_needs_neither_torch_nor_vllm_and_writes_nothing(recording: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from appliance.cli import main\n"
        f"main(['plan', '--topology', {str(TOPOLOGIES / recording)!r}, '--state-dir', 'state', '--json'])\n"
        "heavy = {'torch', 'vllm', 'transformers', 'rich', 'requests', 'huggingface_hub', 'fastapi', 'pynvml'}\n"
        "sys.exit(repr(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "set()"
    assert list(tmp_path.iterdir()) == []


def test_a_user_id_without_a_passwd_entry_plans_and_has_a_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["plan", *NONE, "--state-dir", str(tmp_path), "--json"]) == 0
    for name, sourced in json.loads(capsys.readouterr().out)["environment"].items():
        monkeypatch.setenv(name, sourced["value"])
    # What torch and vLLM ask, and fail at, without this environment.
    assert getpass.getuser() == "appliance"
    assert Path("~").expanduser() == tmp_path / "home"
