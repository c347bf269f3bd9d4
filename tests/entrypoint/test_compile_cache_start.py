"""The compile cache over whole starts of the guardian: cold, warm, poisoned, drifting, deadly, and not to be had."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from appliance import rundir
from appliance.cache.store import Store
from tests.entrypoint.entrypoint_harness import Guarded
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

Run = Guarded


def store(run: Guarded) -> Store:
    return Store(run.run_dir / "cache")


def stamp(run: Guarded) -> dict[str, Any]:
    return dict(json.loads(Path(run.cache["folder"], "stamp.json").read_text()))


def graph(run: Guarded) -> Path:
    return Path(run.cache["folder"], "vllm", "graph")


def serve_and_end(run: Guarded) -> dict[str, Any]:
    """Let it become ready and seal, and stop it; return what cache.json said at the end."""
    run.until("ready")
    if run.cache["enabled"]:
        run.wait(lambda: run.cache["sealed"])
    run.process.terminate()
    assert run.finish() == 0
    return run.cache


def test_a_cold_start_seals_its_tokens_and_a_warm_one_gives_the_same(start: Callable[..., Guarded]) -> None:
    run = start("normal")
    run.until("ready")
    run.wait(lambda: run.cache["sealed"])
    assert store(run).generations()[0].in_use
    cold = serve_and_end(run)
    assert (cold["state"], cold["reason"], cold["rebuilt"], cold["tokens_match"]) == ("cold", "new", False, None)
    assert len(stamp(run)["tokens"]) == 48
    assert "vllm/graph" in stamp(run)["files"]
    assert cold["parts"]["model"]

    run = start("normal")
    run.until("ready")
    warm = serve_and_end(run)
    assert (warm["enabled"], warm["state"], warm["reason"], warm["tokens_match"]) == (True, "warm", "verified", True)
    assert (warm["key"], warm["folder"]) == (cold["key"], cold["folder"])
    assert run.phase["restarts"] == 0
    assert not store(run).generations()[0].in_use


def test_a_generation_that_no_start_used_for_long_goes_after_the_seal(start: Callable[..., Guarded]) -> None:
    run = start("normal")
    used = serve_and_end(run)["key"]
    forgotten = "0" * 32
    folder = shutil.copytree(store(run).root / "generations" / used, store(run).root / "generations" / forgotten)
    record = json.loads((folder / "use.json").read_text())
    (folder / "use.json").write_text(json.dumps(record | {"key": forgotten, "used_at": time.time() - 91 * 86400}))
    assert len(store(run).generations()) == 2

    run = start("normal")
    run.until("ready")
    run.wait(lambda: not folder.exists())
    assert serve_and_end(run)["state"] == "warm"
    assert f"compile cache: removed {forgotten} (0.0 GB, not used for too long)" in run.log
    assert [generation.key for generation in store(run).generations()] == [used]


def test_a_poisoned_file_is_named_purged_and_made_anew(start: Callable[..., Guarded]) -> None:
    run = start("normal")
    serve_and_end(run)
    graph(run).write_text("poisoned\n")
    run = start("normal")
    cold = serve_and_end(run)
    assert (cold["state"], cold["reason"], cold["rebuilt"]) == ("cold", "file_changed", True)
    assert "vllm/graph" in cold["detail"]
    assert f"compile cache cold (file_changed): {cold['detail']}" in run.log
    assert graph(run).read_text() == "compiled\n"
    assert serve_and_end(start("normal"))["state"] == "warm"


def test_compiled_code_that_gives_other_tokens_is_dropped_and_not_served(start: Callable[..., Guarded]) -> None:
    serve_and_end(start("normal"))
    seen: list[str] = []
    run = start("drifts", on_engine_exit="end")

    def ready() -> bool:
        seen.append(run.phase.get("phase", ""))
        return seen[-1] == "ready"

    run.wait(ready)
    assert "dead" not in seen, "the start goes on"
    assert "gives other greedy tokens than that start did; the code is dropped" in run.log
    found = serve_and_end(run)
    assert (found["state"], found["reason"], found["rebuilt"]) == ("cold", "warm_tokens_differ", True)
    assert (found["enabled"], found["sealed"]) == (True, True)


def test_code_that_drifts_at_every_start_is_not_loaded_for_ever(start: Callable[..., Guarded]) -> None:
    serve_and_end(start("drifts"))
    for _ in range(2):
        assert serve_and_end(start("drifts"))["reason"] == "warm_tokens_differ"
    run = start("drifts")
    found = serve_and_end(run)
    assert (found["enabled"], found["reason"]) == (False, "rebuilt_too_often")
    assert "dropped 2 times in a row" in found["detail"]
    assert run.log.count("other greedy tokens") == 0


def test_one_other_answer_while_a_client_is_there_already_proves_nothing(start: Callable[..., Guarded]) -> None:
    serve_and_end(start("normal"))
    found = serve_and_end(start("disturbed"))
    assert (found["state"], found["tokens_match"]) == ("warm", True)


def test_an_engine_that_trips_over_an_artefact_starts_once_more_without_it(start: Callable[..., Guarded]) -> None:
    serve_and_end(start("normal"))
    run = start("brittle", on_engine_exit="end")
    found = serve_and_end(run)
    assert "starting once more without what was compiled earlier" in run.log
    assert (found["state"], found["reason"], found["rebuilt"]) == ("cold", "engine_died", True)


def test_a_generation_on_which_two_starts_died_is_dropped_for_one_start_more(start: Callable[..., Guarded]) -> None:
    serve_and_end(start("normal"))
    run = start("tripping", max_restarts=1)
    found = serve_and_end(run)
    assert (found["state"], found["reason"]) == ("cold", "died_twice")
    assert (run.run_dir / "tripped").read_text() == "xx"


def test_no_start_more_is_owed_to_an_engine_that_compiled_by_itself(start: Callable[..., Guarded]) -> None:
    run = start("doomed", max_restarts=1)
    assert run.finish() == 1
    assert run.ending["reason"].endswith("gave up after 2 starts without becoming ready")


def test_a_killed_guardian_leaves_what_was_compiled_to_the_next_start(start: Callable[..., Guarded]) -> None:
    run = start("mute")
    run.until("warming")
    tree = run.tree()
    run.process.send_signal(signal.SIGKILL)
    run.finish()
    for one in tree:
        with suppress(psutil.NoSuchProcess):
            one.kill()  # a session's entrypoint adopts and kills them
    psutil.wait_procs(tree, timeout=LIMIT_S)
    run = start("normal")
    found = serve_and_end(run)
    assert (found["state"], found["reason"], found["sealed"]) == ("resumed", "interrupted", True)


@pytest.mark.parametrize(
    ("mode", "note"),
    [
        ("textless", "the model completes no text, so that no later start can be compared with this one"),
        ("moody", "greedy tokens do not repeat in this engine, so that no later start can be compared with this one"),
    ],
)
def test_where_nothing_can_be_compared_that_is_told(start: Callable[..., Guarded], mode: str, note: str) -> None:
    run = start(mode)
    assert serve_and_end(run)["tokens_match"] is None
    assert f"compile cache: {note}" in run.log
    assert stamp(run)["tokens"] is None
    assert serve_and_end(start(mode))["state"] == "warm"


def test_the_switch_turns_it_off_and_leaves_nothing(start: Callable[..., Guarded]) -> None:
    run = start("normal", environment={"VLLM_DISABLE_COMPILE_CACHE": "1"})
    run.until("ready")
    folder = Path(run.cache["folder"])
    assert folder.is_dir()
    found = serve_and_end(run)
    assert (found["enabled"], found["state"], found["reason"]) == (False, "off", "user_override")
    assert not (run.run_dir / "cache").exists()
    assert not folder.exists()


def test_a_cache_that_cannot_be_had_does_not_stop_the_serving(start: Callable[..., Guarded], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    run = start("normal")
    found = serve_and_end(run)
    assert (found["enabled"], found["reason"], found["sealed"]) == (False, "not_a_folder", False)
    assert found["key"]


def test_a_model_without_a_configuration_has_no_key(start: Callable[..., Guarded], tmp_path: Path) -> None:
    run = start("normal", model=tmp_path / "elsewhere")
    found = serve_and_end(run)
    assert (found["enabled"], found["reason"], found["key"]) == (False, "no_key", None)


def test_a_generation_that_cannot_be_sealed_serves_all_the_same(start: Callable[..., Guarded]) -> None:
    run = start("unsealable")
    run.until("ready")
    run.wait(lambda: run.cache["seal_reason"])
    assert run.cache["sealed"] is False
    assert "not sealed" in run.log
    assert rundir.read(run.run_dir, rundir.PHASE)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish() == 0
