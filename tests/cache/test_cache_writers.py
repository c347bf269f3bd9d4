"""Many real processes on one generation: none sees another's half, none takes away what another uses."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from appliance.cache import locks
from appliance.cache.store import Store, UnusableError
from tests.cache.cachekit import ARTEFACTS, KEY, PARTS, TOKENS, contents, fill, in_process, sealed
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event
    from pathlib import Path

SPAWN = multiprocessing.get_context("spawn")


def engine(root: Path, number: int, go: Event, results: Queue[tuple[int, str, bool, list[int] | None]]) -> None:
    """Open at the same moment as all others, compile, seal, and leave."""
    go.wait(60)
    with Store(root).open(KEY, PARTS) as lease:
        fill(lease.folder)
        fill(lease.folder, {f"triton/own-{number}/kernel.cubin": bytes([number]) * 999})
        done = lease.seal([number])
        results.put((number, lease.state, done.sealed, lease.tokens))


def test_engines_that_start_at_once_share_one_generation_and_one_stamp(tmp_path: Path) -> None:
    go, results = SPAWN.Event(), SPAWN.Queue()
    processes = [SPAWN.Process(target=engine, args=(tmp_path, number, go, results)) for number in range(5)]
    for process in processes:
        process.start()
    go.set()
    told = [results.get(timeout=LIMIT_S) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert all(done for _, _, done, _ in told)
    tokens = {tuple(found or ()) for *_, found in told}
    assert len(tokens) == 1, "the first that sealed gave the tokens, to all"
    assert Store(tmp_path).verify(KEY) == []
    with Store(tmp_path).open(KEY, PARTS) as lease:
        assert (lease.state, tuple(lease.tokens or ())) == ("warm", *tokens)
        assert contents(lease.folder).items() >= ARTEFACTS.items()
        assert len(list((lease.folder / "triton").glob("own-*"))) == 5


def hammer(root: Path, seed: int, until: float) -> None:
    """Start, compile, seal, drop, verify and prune in any order until the time is over, or the process is killed."""
    choose = random.Random(seed)
    store = Store(root, patience=30)
    while time.monotonic() < until:
        try:
            with store.open(KEY, PARTS) as lease:
                found = contents(lease.folder)
                if lease.state == "warm":
                    missing = {name for name in ARTEFACTS if found.get(name) != ARTEFACTS[name]}
                    assert not missing, f"warm without {missing}"
                fill(lease.folder)
                lease.seal(TOKENS)
                if choose.random() < 0.3:
                    lease.drop("asked")
                    fill(lease.folder)
        except UnusableError as error:
            if error.reason not in ("shared", "broken_in_use", "busy"):
                raise
        if choose.random() < 0.1:
            poison(store)
        if choose.random() < 0.3:
            store.prune(max_age_s=-1)


def poison(store: Store) -> None:
    """Flip a bit on the disk while nobody uses the generation: under an engine no opening could see it."""
    with locks.gate(store.root, KEY) as held:
        hold = locks.use(store.root, KEY)
        file = store.folder / KEY / "inductor/xy/cxyz.py"
        if held and hold.alone() and file.exists():
            file.write_bytes(b"poison")
        hold.release()


def test_killed_writers_never_leave_what_a_start_would_load_wrongly(tmp_path: Path) -> None:
    until = time.monotonic() + 6
    choose = random.Random(7)
    processes = []
    for seed in range(12):
        process = SPAWN.Process(target=hammer, args=(tmp_path, seed, until))
        process.start()
        processes.append(process)
        if len([one for one in processes if one.is_alive()]) >= 3:
            time.sleep(choose.random() * 0.5)
            victim = choose.choice([one for one in processes if one.is_alive()] or [process])
            victim.kill()
            victim.join(60)
    for process in processes:
        process.join(LIMIT_S)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    assert not any(one.in_use for one in Store(tmp_path).generations())
    with Store(tmp_path).open(KEY, PARTS) as lease:
        if lease.state == "warm":
            assert contents(lease.folder).items() >= ARTEFACTS.items()
        lease.drop("asked")
    Store(tmp_path).prune()
    assert [path.name for path in (tmp_path / "generations").iterdir()] == [KEY]


def keep(root: Path, ready: Event, leave: Event) -> None:
    with Store(root).open(KEY, PARTS):
        ready.set()
        leave.wait(60)


def test_what_another_process_uses_is_neither_pruned_nor_removed_and_a_kill_lets_go_of_it(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    ready, leave = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=keep, args=(tmp_path, ready, leave))
    process.start()
    assert ready.wait(60)
    assert store.generations()[0].in_use
    assert store.prune(-1, 0) == []
    assert store.seal(KEY).reason == "in_use"
    assert contents(store.folder / KEY) == ARTEFACTS
    process.kill()
    process.join(60)
    assert not store.generations()[0].in_use
    assert len(store.prune(-1)) == 1


def test_listing_takes_nothing_away_from_a_start_at_the_same_moment(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    for _ in range(20):
        child = os.fork()
        if child == 0:
            try:
                for _ in range(50):
                    Store(tmp_path).generations()
            finally:
                os._exit(0)
        with store.open(KEY, PARTS) as lease:
            assert (lease.state, lease.reason) == ("warm", "verified")
            lease.drop("asked")
            fill(lease.folder)
            assert lease.seal(TOKENS).sealed
        os.waitpid(child, 0)


def busy(root: Path, ready: Event, leave: Event) -> None:
    with locks.gate(root, KEY) as held:
        assert held
        ready.set()
        leave.wait(60)


def test_a_start_waits_for_whoever_reads_the_generation_whole_but_not_for_ever(tmp_path: Path) -> None:
    sealed(tmp_path)
    ready, leave = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=busy, args=(tmp_path, ready, leave))
    process.start()
    assert ready.wait(60)
    with pytest.raises(UnusableError) as refused:
        Store(tmp_path, patience=0.2).open(KEY, PARTS)
    assert refused.value.reason == "busy"
    assert Store(tmp_path).generations()[0].in_use
    leave.set()
    with Store(tmp_path, patience=60).open(KEY, PARTS) as lease:
        assert lease.state == "warm"
    process.join(60)


def test_a_child_of_the_holder_does_not_hold_on(tmp_path: Path) -> None:
    in_process(_leave_a_child, tmp_path, survives=False)
    assert not Store(tmp_path).generations()[0].in_use
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def _leave_a_child(root: Path) -> None:
    import subprocess

    lease = Store(root).open(KEY, PARTS)
    child = subprocess.Popen(["sleep", "60"])
    (root / "child").write_text(str(child.pid))
    assert lease.state == "cold"
    os.kill(os.getpid(), signal.SIGKILL)
