"""From what a person asked for to a running appliance: plan, checks, model, then supervision until the end."""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import shutil
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import paths, rundir
from appliance.errors import ApplianceError, CheckError, ConfigurationError
from appliance.launch import environment as engine_environment
from appliance.launch import keys, request, resolve, settings
from appliance.models.progress import LogProgress, for_stream
from entrypoint import processes
from entrypoint.display import Address, PhaseBar, PhaseLines
from entrypoint.phase_file import PhaseFile
from entrypoint.relay import Formatter, Redactor, secrets_of
from entrypoint.session import Session
from entrypoint.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from appliance.launch.plan import Plan
    from appliance.models.progress import Progress

_OF_THE_FIT = ("driver", "sm70_kernels", "shm")
"""The checks that `force` overrules, as it does the profile's fit. A port that is taken stays taken."""

SUMMARY = (
    "Start the engine and the sidecar and stay until they end. SIGTERM and Ctrl-C let running requests finish; a "
    "second Ctrl-C kills."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `appliance serve`."""
    settings.add_options(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve as the container's first process. Returns the exit status; a mistake is one line."""
    parser = argparse.ArgumentParser(prog="entrypoint", description=SUMMARY, allow_abbrev=False)
    configure(parser)
    try:
        return run(parser.parse_args(argv))
    except ApplianceError as error:
        print(f"appliance: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


def run(arguments: argparse.Namespace) -> int:
    """Decide on a plan and serve it. Raises ConfigurationError and CheckError for what stops the start."""
    # The first process of a container has no default actions: without a handler SIGTERM would do nothing.
    signal.signal(signal.SIGTERM, _end)
    asked = request.from_arguments(arguments, os.environ, Path.cwd())
    if asked.machine.source != request.LIVE:
        raise ConfigurationError("serve starts on this machine, not on a recorded one; leave topology out")
    plan = resolve.resolve(asked)
    secrets = {**keys.engine_secrets(asked), **keys.sidecar_secrets(asked), **keys.hub_secrets(asked)}
    return serve(plan, {**os.environ, **secrets})


def _end(_sign: int, _frame: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def serve(plan: Plan, environment: Mapping[str, str]) -> int:
    """Check the machine, make the model present, and supervise until the end. `environment` has the secrets too."""
    processes.adopt_orphans()
    as_json = plan.setting("log_format") == "json"
    console = None if as_json else _terminal()
    redactor = Redactor(secrets_of(environment))
    stream = Stream(Formatter(as_json), redactor, sys.stdout, console)
    run_dir = Path(plan.setting("run_dir"))
    address = address_of(plan)
    stream.start()
    try:
        for line in summary(plan, address):
            stream.say(line)
        for warning in [*plan.warnings, *_preflight(plan)]:
            stream.say(warning, "warning")
        with _alone(run_dir):
            _prepare(plan)
            phase = PhaseFile(run_dir, None, plan.health["stall_grace"], redactor, stream.say)
            with _starting(phase):
                progress = for_stream(sys.stdout) if console else LogProgress(stream.say)
                _fetch(plan, progress, environment.get(keys.HUB_VARIABLE))
            stream.show(PhaseBar(address, console) if console else PhaseLines(address), run_dir)
            return Session(plan, environment, stream).run()
    finally:
        processes.kill_descendants()
        stream.end()


def _terminal() -> Console | None:
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(file=sys.stdout)


def summary(plan: Plan, address: Address) -> Iterator[str]:
    """Yield what is started, why, and where it will be."""
    pinned = plan.selection["source"] == "pinned"
    yield f"{plan.title} (profile {plan.profile}: {'pinned' if pinned else 'the best that fits'})"
    for other in () if pinned else plan.selection["rejected"]:
        yield f"not {other['profile']}: {'; '.join(other['reasons'])}"
    yield from plan.selection.get("advice", ())
    yield f"model {plan.served_model_name} in {plan.model.folder}"
    if plan.draft:
        yield f"draft in {plan.draft.folder}"
    gpus = ", ".join(map(str, plan.gpus))
    health = f"; health at {address.status}" if address.status else ""
    yield f"will be at {address.url}/v1{f', on GPU {gpus}' if gpus else ''}{health}"


def _preflight(plan: Plan) -> list[str]:
    """Return the warnings of the checks. Raises CheckError for the first that failed."""
    from appliance.doctor import first_failure, preflight

    checks = preflight(plan)
    forced = [check for check in checks if check.id in _OF_THE_FIT] if plan.setting("force") else []
    if failed := first_failure([check for check in checks if check not in forced]):
        raise CheckError(failed.line)
    return [check.line for check in checks if check.status in ("warn", "fail")]


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Hold the run directory: two starts in one would tell the probes of each other's engine."""
    with (run_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise CheckError(
                f"{run_dir} is in use by another appliance (process {holder}); stop that, or give this one its own "
                "with --run-dir"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _prepare(plan: Plan) -> None:
    """Clear away what an earlier start left, and make the folders that libraries expect to be there."""
    run_dir = Path(plan.setting("run_dir"))
    rundir.clear(run_dir)
    rundir.share(run_dir)
    for folder in engine_environment.folders(plan.setting("state_dir")).values():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckError(f"{folder} cannot be made ({error.strerror}); is the state folder writable?") from None


@contextmanager
def _starting(phase: PhaseFile) -> Iterator[None]:
    """Keep the probes told while a model is fetched, which no budget bounds: it takes what the network takes."""
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(1.0):
            phase.write()

    phase.begin(os.getpid(), progress="making the model present")
    thread = threading.Thread(target=refresh, name="starting", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        reason = str(error) if isinstance(error, ApplianceError) else "ended while the model was made present"
        phase.record = replace(phase.record, phase="dead", reason=reason)
        raise
    finally:
        done.set()
        thread.join()
        phase.write()


def _fetch(plan: Plan, progress: Progress, token: str | None) -> None:
    from appliance.models.ensure import ensure

    for model in filter(None, (plan.model, plan.draft)):
        state_dir = Path(plan.setting("state_dir"))
        ensure(model, offline=plan.setting("offline"), progress=progress, state_dir=state_dir, token=token)


def address_of(plan: Plan) -> Address:
    """Return how a person reaches what the plan starts."""
    return Address(
        host=plan.setting("host"),
        port=plan.setting("port"),
        sidecar=(plan.setting("sidecar_host"), plan.setting("sidecar_port")) if plan.setting("sidecar") else None,
        model=plan.served_model_name,
        key=_key_expression(plan),
        probe=_probe(Path(plan.setting("run_dir"))),
        tls="ssl_certfile" in plan.arguments,
    )


def _key_expression(plan: Plan) -> str | None:
    """What a shell puts in the key's place: the variable or the file in which the person has it."""
    key = plan.settings["api_key"]
    if key.value is None:
        return None
    file = plan.setting("api_key_file")
    if file is not None:
        return f"$(head -n 1 {shlex.quote(file)})"
    return f"${keys.VARIABLE}" if key.source == f"environment {keys.VARIABLE}" else "$APPLIANCE_API_KEY"


def _probe(run_dir: Path) -> str:
    """The probe's command, as it works in the shell of the person who reads it."""
    command = "appliance"
    if shutil.which(command) is None:
        beside = Path(sys.executable).with_name(command)
        # After `make serve` a person stands in the checkout, where the short form works.
        inside = Path.cwd() == paths.ROOT and beside.is_relative_to(paths.ROOT)
        command = shlex.quote(str(beside.relative_to(paths.ROOT) if inside else beside))
    where = "" if run_dir == paths.run_dir() else f" --run-dir {shlex.quote(str(run_dir))}"
    return f"{command} probe ready{where}"
