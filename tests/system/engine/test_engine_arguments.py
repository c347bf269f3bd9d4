"""The committed tables of arguments and variables, held against the real vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from appliance.launch import arguments, environment
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.paths import ROOT, TOPOLOGIES
from appliance.topology import recorded

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

QUIET = {**os.environ, "VLLM_LOGGING_LEVEL": "CRITICAL"}


def test_the_committed_tables_are_those_of_the_installed_vllm(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "vllm_tables.py", tmp_path], env=QUIET, check=True)
    for committed in (arguments.TABLE, environment.TABLE):
        assert (tmp_path / committed.name).read_text() == committed.read_text()


def test_the_real_parser_reads_every_plan_as_it_is_meant(tmp_path: Path) -> None:
    after = ("-tp=1", "--max-model-len", "2K", "-cc.mode", "0", "--middleware", "a.B", "-O1", "--no-enable-lora")
    requests = [
        Request({}, words, {}, recorded.load(path), tmp_path)
        for path in sorted(TOPOLOGIES.glob("*.json"))
        if path.stem != "1xh200"
        for words in ((), after if path.stem == "none" else ())
    ]
    plans = [resolve(asked) for asked in requests]
    code = (
        "import json, sys\n"
        "from vllm.entrypoints.openai.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "for words in json.load(sys.stdin):\n"
        "    print(json.dumps(vars(make_arg_parser(FlexibleArgumentParser()).parse_args(words)), default=str))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([plan.command[3:] for plan in plans]),
        env=QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(plans)
    for plan, line in zip(plans, lines, strict=True):
        read = json.loads(line)
        for name, sourced in plan.arguments.items():
            # vLLM makes objects of these, whose text is not the JSON that was given.
            if name not in ("compilation_config", "structured_outputs_config"):
                assert read[name] == sourced.value, name
