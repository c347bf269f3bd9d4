"""What stops a start before anything runs: one line, and the exit status that says whose mistake it is."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance import rundir
from appliance.health import judge
from appliance.launch import request, resolve, settings
from appliance.models.progress import SilentProgress
from entrypoint import main
from entrypoint.relay import secrets_of
from tests.waiting import LIMIT_S, until

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("APPLIANCE_", "VLLM_"))}
NONE = Path(__file__).parents[2] / "config" / "topologies" / "none.json"


def serve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "entrypoint", *arguments],
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def portable(tmp_path: Path, *more: str) -> list[str]:
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(str(probe.getsockname()[1]))
    words = ["--profile", "portable_smollm2", "--state-dir", str(tmp_path / "state")]
    return [*words, "--port", ports[0], "--sidecar-port", ports[1], *more]


def test_a_misspelt_option_is_wrong_usage(tmp_path: Path) -> None:
    done = serve(*portable(tmp_path, "--prot", "9000"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_misspelt_variable_names_the_nearest_one(tmp_path: Path) -> None:
    done = serve(*portable(tmp_path), APPLIANCE_PROT="9000")
    assert done.returncode == 2
    assert done.stderr.startswith('appliance: environment: no setting "APPLIANCE_PROT"; did you mean "APPLIANCE_PORT"?')
    assert done.stderr.count("\n") == 1


def test_a_recorded_machine_cannot_be_served_on(tmp_path: Path) -> None:
    done = serve(*portable(tmp_path, "--topology", str(NONE)))
    assert done.returncode == 2
    assert done.stderr == "appliance: serve starts on this machine, not on a recorded one; leave topology out\n"


@pytest.mark.needs("engine")
def test_a_port_in_use_names_who_has_it_and_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve(*portable(tmp_path, "--port", str(port)))
    assert done.returncode == 1
    assert f"127.0.0.1 port {port} is in use by process {os.getpid()} (" in done.stderr
    assert "choose another port with --port or APPLIANCE_PORT" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.needs("engine")
def test_a_state_folder_that_cannot_be_written_is_told_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    done = serve(*portable(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path / 'state'} cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.needs("engine")
def test_two_starts_do_not_share_a_run_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "state" / "run"
    run_dir.mkdir(parents=True)
    rundir.write(run_dir, rundir.PHASE, {"phase": "ready"})
    with (run_dir / "lock").open("a+") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = serve(*portable(tmp_path))
    assert done.returncode == 1
    assert f"{run_dir} is in use by another appliance (process 4711); stop that" in done.stderr
    assert rundir.read(run_dir, rundir.PHASE) == {"phase": "ready"}, "the other's record is left alone"


def test_a_model_that_is_not_whole_stops_the_start_and_the_probes_say_why(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    done = serve(*portable(tmp_path, "--model", str(model)))
    assert done.returncode in (1, 2)
    assert str(model) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.needs("engine")
def test_sigterm_while_the_model_is_made_present_ends_it_with_nothing_left(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "entrypoint", *portable(tmp_path)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        run_dir = tmp_path / "state" / "run"
        until(lambda: judge.report(run_dir).phase == "starting", every_s=0.05)
        report = judge.report(run_dir)
        assert report.live_ok
        assert "making the model present" in report.reason
        started.terminate()
        output = started.communicate(timeout=LIMIT_S)[0]
    assert started.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in output
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)


def plan_of(tmp_path: Path, *arguments: str, **variables: str) -> Any:
    parser = argparse.ArgumentParser()
    settings.add_options(parser)
    words = ["--topology", str(NONE), "--profile", "portable_smollm2", "--state-dir", str(tmp_path), *arguments]
    return resolve.resolve(request.from_arguments(parser.parse_args(words), variables, tmp_path))


def test_the_curl_takes_the_key_from_where_the_person_has_it(tmp_path: Path) -> None:
    file = tmp_path / "the key"
    file.write_text("sk-1234567\n")
    assert main.address_of(plan_of(tmp_path)).key is None
    assert main.address_of(plan_of(tmp_path, APPLIANCE_API_KEY="sk-1234567")).key == "$APPLIANCE_API_KEY"
    assert main.address_of(plan_of(tmp_path, VLLM_API_KEY="sk-1234567")).key == "$VLLM_API_KEY"
    assert main.address_of(plan_of(tmp_path, "--api-key-file", str(file))).key == f"$(head -n 1 '{file}')"


def test_the_summary_says_what_why_and_where(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "--host", "0.0.0.0")
    lines = list(main.summary(plan, main.address_of(plan)))
    assert lines[0].endswith("(profile portable_smollm2: pinned)")
    assert lines[-1] == "will be at http://127.0.0.1:8000/v1; health at http://127.0.0.1:8001"
    apart = main.address_of(plan_of(tmp_path, "--no-sidecar"))
    assert apart.status is None
    assert list(main.summary(plan_of(tmp_path, "--no-sidecar"), apart))[-1] == "will be at http://127.0.0.1:8000/v1"
    assert main.address_of(plan).probe.endswith(f"probe ready --run-dir {tmp_path}/run")


def test_hugging_faces_token_reaches_the_download_and_what_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_of_the_test\n")
    handed: dict[str, str] = {}

    def noted(_plan: object, environment: dict[str, str]) -> int:
        handed.update(environment)
        return 0

    monkeypatch.setattr(main, "serve", noted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in [name for name in os.environ if name.startswith(("APPLIANCE_", "VLLM_", "HF_TOKEN"))]:
        monkeypatch.delenv(name)
    assert main.main(portable(tmp_path, "--hf-token-file", str(tmp_path / "token"))) == 0
    assert handed["HF_TOKEN"] == "hf_of_the_test"
    assert "hf_of_the_test" in secrets_of(handed)

    given: list[str | None] = []
    monkeypatch.setattr("appliance.models.ensure.ensure", lambda _model, **words: given.append(words["token"]))
    main._fetch(plan_of(tmp_path), SilentProgress(), handed["HF_TOKEN"])
    assert given == ["hf_of_the_test"]


def test_the_summary_tells_of_room_for_a_second_instance(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    roomy = replace(plan, selection={**plan.selection, "advice": ["a second instance fits on 2,3: …"]})
    assert "a second instance fits on 2,3: …" in list(main.summary(roomy, main.address_of(plan)))
