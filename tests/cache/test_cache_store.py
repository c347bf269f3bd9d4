"""The store from start to start: cold, sealed, warm, resumed, dropped, pruned."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from appliance.cache import scan
from appliance.cache.key import key_of
from appliance.cache.place import Place
from appliance.cache.store import FOLDERS, Removed, Store, UnusableError
from appliance.errors import CheckError
from tests.cache.cachekit import (
    ARTEFACTS,
    KEY,
    PARTS,
    TOKENS,
    another_boot,
    contents,
    die_holding,
    fill,
    held,
    in_process,
    opened,
    sealed,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def folder(root: Path) -> Path:
    return root / "generations" / KEY


def test_the_first_start_is_cold_and_has_every_folder_that_the_engine_is_given(tmp_path: Path) -> None:
    with Store(tmp_path).open(KEY, PARTS) as lease:
        assert (lease.state, lease.reason, lease.rebuilt, lease.tokens) == ("cold", "new", False, None)
        assert lease.folder == folder(tmp_path)
        assert all((lease.folder / name).is_dir() for name in (*FOLDERS.values(), "sm70"))


def test_a_store_creates_nothing_before_it_is_opened(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    assert store.generations() == []
    assert store.prune(0, 0) == []
    assert list(tmp_path.iterdir()) == []


def test_a_sealed_generation_is_warm_with_its_tokens_and_every_byte(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    with store.open(KEY, PARTS) as lease:
        assert (lease.state, lease.reason, lease.rebuilt, lease.tokens) == ("warm", "verified", False, TOKENS)
        assert contents(lease.folder) == ARTEFACTS
        assert lease.detail == "4 files are as they were sealed"


def test_opening_reports_every_byte_that_it_reads(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    seen: list[int] = []
    with store.open(KEY, PARTS, seen=seen.append):
        assert sum(seen) == sum(map(len, ARTEFACTS.values()))


@pytest.mark.parametrize("name", ARTEFACTS)
@pytest.mark.parametrize("harm", ["flipped", "longer", "empty", "gone", "link", "folder", "pipe"])
def test_a_file_that_is_not_as_it_was_makes_the_generation_cold_once(tmp_path: Path, name: str, harm: str) -> None:
    sealed(tmp_path)
    path = folder(tmp_path) / name
    data = path.read_bytes()
    path.unlink()
    if harm == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif harm == "longer":
        path.write_bytes(data + b"!")
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(data)
        path.symlink_to(elsewhere)
    elif harm == "folder":
        path.mkdir()
    elif harm == "pipe":
        os.mkfifo(path)
    with Store(tmp_path).open(KEY, PARTS) as lease:
        assert (lease.state, lease.reason, lease.rebuilt, lease.tokens) == ("cold", "file_changed", True, None)
        assert lease.detail.startswith(name)
        assert contents(lease.folder) == {}
        fill(lease.folder)
        assert lease.seal().sealed
    assert opened(tmp_path) == ("warm", "verified")
    if harm == "link":
        assert (tmp_path / "elsewhere").read_bytes() == data


@pytest.mark.parametrize(
    "harm", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000, b"null"], ids=lambda harm: repr(harm[:12])
)
def test_a_damaged_stamp_makes_the_generation_cold(tmp_path: Path, harm: bytes) -> None:
    sealed(tmp_path)
    (folder(tmp_path) / "stamp.json").write_bytes(harm)
    assert opened(tmp_path) == ("cold", "stamp_damaged")


def test_names_that_are_no_text_are_told_as_text(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(KEY, PARTS) as lease:
        name = os.fsdecode(b"triton/\xff\n.cubin")
        fill(lease.folder, {name: b"x"})
        assert lease.seal().sealed
    (folder(tmp_path) / name).unlink()
    (store.folder / os.fsdecode(b"\xff\n")).mkdir()
    assert {one.key: one.problem for one in store.generations()} == {
        KEY: r"triton/\udcff\n.cubin is missing",
        r"\udcff\n": "is not of the cache's making; remove it by hand",
    }
    with store.open(KEY, PARTS) as lease:
        assert (lease.reason, lease.detail) == ("file_changed", r"triton/\udcff\n.cubin is missing")


@pytest.mark.parametrize("name", ["stamp.json", "use.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_record_that_is_no_plain_file_is_none_and_holds_up_nobody(tmp_path: Path, name: str, kind: str) -> None:
    root = tmp_path / "c"
    sealed(root)
    path = folder(root) / name
    path.rename(tmp_path / name)
    if kind == "link":
        path.symlink_to(tmp_path / name)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert Store(root).generations()[0].key == KEY
    before = (tmp_path / name).read_bytes()
    if name == "stamp.json":
        assert opened(root) == ("cold", "stamp_damaged")
    else:
        # A folder cannot be replaced by a record, so nothing can be written down there.
        assert opened(root) == ("warm", "verified_read_only" if kind == "folder" else "verified")
    assert (tmp_path / name).read_bytes() == before


def test_a_stamp_with_one_digit_changed_is_damaged(tmp_path: Path) -> None:
    sealed(tmp_path)
    stamp = folder(tmp_path) / "stamp.json"
    before = stamp.read_bytes()
    stamp.write_bytes(before.replace(b"\n  5,", b"\n  6,"))
    assert stamp.read_bytes() != before
    assert opened(tmp_path) == ("cold", "stamp_damaged")


def test_a_stamp_of_another_key_is_not_taken(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    other = {**PARTS, "gpu": "Tesla V100-SXM2-32GB sm_70"}
    folder(tmp_path).rename(store.folder / key_of(other))
    with store.open(key_of(other), other) as lease:
        assert (lease.state, lease.reason) == ("cold", "stamp_damaged")


def test_a_generation_that_was_moved_is_not_taken_because_its_artefacts_hold_its_path(tmp_path: Path) -> None:
    sealed(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert opened(tmp_path / "two") == ("cold", "moved")


def test_a_killed_start_of_this_boot_is_resumed_with_what_it_wrote(tmp_path: Path) -> None:
    die_holding(tmp_path)
    with Store(tmp_path).open(KEY, PARTS) as lease:
        assert (lease.state, lease.reason, lease.rebuilt) == ("resumed", "interrupted", False)
        assert contents(lease.folder) == ARTEFACTS


def test_a_killed_start_of_another_boot_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    die_holding(tmp_path)
    another_boot(monkeypatch)
    with Store(tmp_path).open(KEY, PARTS) as lease:
        assert (lease.state, lease.reason, lease.rebuilt) == ("cold", "power_lost", True)
        assert contents(lease.folder) == {}


def test_without_a_boot_id_nothing_unsealed_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another_boot(monkeypatch, "")
    with Store(tmp_path).open(KEY, PARTS) as lease:
        fill(lease.folder)
    assert opened(tmp_path) == ("cold", "power_lost")


def test_two_deaths_before_ready_drop_an_unsealed_generation(tmp_path: Path) -> None:
    die_holding(tmp_path)
    die_holding(tmp_path)
    assert opened(tmp_path) == ("cold", "died_twice")


def test_two_deaths_before_ready_drop_even_a_sealed_generation_whose_hashes_fit(tmp_path: Path) -> None:
    sealed(tmp_path)
    die_holding(tmp_path, {})
    assert opened(tmp_path) == ("warm", "verified")
    die_holding(tmp_path, {})
    assert opened(tmp_path) == ("cold", "died_twice")


def test_a_ready_engine_forgets_the_deaths_before_it(tmp_path: Path) -> None:
    sealed(tmp_path)
    for _ in range(3):
        die_holding(tmp_path, {})
        with held(tmp_path) as lease:
            assert lease.state == "warm"
            assert lease.seal().sealed


def test_a_kill_while_the_hashes_are_taken_is_no_death(tmp_path: Path) -> None:
    for _ in range(3):
        in_process(_die_sealing, tmp_path, survives=False)
    assert opened(tmp_path) == ("resumed", "interrupted")


def _die_sealing(root: Path) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), 9)

    with held(root) as lease:
        fill(lease.folder)
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(scan, "hash_file", die)
        lease.seal(TOKENS)


def test_a_start_that_ends_by_intent_is_no_death(tmp_path: Path) -> None:
    for _ in range(4):
        with held(tmp_path) as lease:
            assert not lease.rebuilt
            fill(lease.folder)


def test_a_machine_without_power_is_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed(tmp_path)
    for boot in ("b", "c", "d"):
        die_holding(tmp_path, {})
        another_boot(monkeypatch, boot)
        assert opened(tmp_path) == ("warm", "verified")


def test_engines_that_die_within_one_lease_count_too(tmp_path: Path) -> None:
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        lease.died()
        assert (lease.state, contents(lease.folder)) == ("warm", ARTEFACTS)
        lease.died()
        assert (lease.state, lease.reason, lease.rebuilt, lease.tokens) == ("cold", "died_twice", True, None)
        assert contents(lease.folder) == {}


def test_what_a_warm_engine_adds_joins_the_stamp_at_the_next_seal(tmp_path: Path) -> None:
    more = {"triton/NEW/late.cubin": b"late"}
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        fill(lease.folder, more)
        assert lease.seal().sealed
    with held(tmp_path) as lease:
        assert (lease.state, lease.tokens) == ("warm", TOKENS)
        assert lease.detail == "5 files are as they were sealed"


def test_what_a_warm_engine_added_and_nobody_sealed_is_kept_in_this_boot_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        fill(lease.folder, {"triton/NEW/late.cubin": b"late"})
    with held(tmp_path) as lease:
        assert (lease.state, (lease.folder / "triton/NEW/late.cubin").exists()) == ("warm", True)
    another_boot(monkeypatch)
    with held(tmp_path) as lease:
        assert (lease.state, contents(lease.folder)) == ("warm", ARTEFACTS)


def test_a_warm_seal_with_nothing_new_writes_no_stamp(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    before = (folder(tmp_path) / "stamp.json").stat()
    with store.open(KEY, PARTS) as lease:
        assert lease.seal(TOKENS).sealed
    after = (folder(tmp_path) / "stamp.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_file_that_the_engine_itself_rewrote_is_hashed_again_at_the_next_seal(tmp_path: Path) -> None:
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        fill(lease.folder, {"inductor/xy/cxyz.py": b"def call(): 1.2\n"})
        assert lease.seal().sealed
    assert opened(tmp_path) == ("warm", "verified")


def test_what_another_writer_takes_away_during_the_hashing_is_not_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scan.hash_files

    def hash_files(where: Path, names: Collection[str]) -> object:
        done = real(where, names)
        (where / "vllm/modelinfos/tmpabc").unlink()
        fill(where, {"vllm/modelinfos/llama.json": b"second"})
        return done

    with held(tmp_path) as lease:
        fill(lease.folder, ARTEFACTS | {"vllm/modelinfos/tmpabc": b"x", "vllm/modelinfos/llama.json": b"first"})
        with monkeypatch.context() as patch:
            patch.setattr(scan, "hash_files", hash_files)
            assert lease.seal(TOKENS).sealed
    with held(tmp_path) as lease:
        assert (lease.state, lease.detail) == ("warm", "4 files are as they were sealed")
        assert lease.seal().sealed
    stamp = Place(tmp_path, KEY).look().stamp
    assert stamp is not None
    assert len(stamp.files) == 5


def test_tokens_of_the_first_seal_stand_and_a_stamp_without_them_takes_them_later(tmp_path: Path) -> None:
    with held(tmp_path) as lease:
        fill(lease.folder)
        assert lease.seal(None).sealed
        unsealed = lease.tokens
        assert unsealed is None
        assert lease.seal([1]).sealed
        assert lease.seal([2]).sealed
        assert lease.tokens == [1]
    with held(tmp_path) as lease:
        assert lease.tokens == [1]


def test_files_that_are_never_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volatile = {"cuda/1/index": b"driver", "vllm/gpu_p2p_access_cache_for_0,1.json": b"{}"}
    with held(tmp_path) as lease:
        fill(lease.folder)
        fill(lease.folder, volatile)
        leaky = lease.folder / "vllm/torch_compile_cache/ab/rank_0_0/backbone/cache_key_factors.json"
        fill(lease.folder, {str(leaky.relative_to(lease.folder)): b'{"VLLM_API_KEY": "sk-secret"}'})
        (lease.folder / "inductor/locks").mkdir()
        (lease.folder / "inductor/locks/cxyz.lock").touch()
        (lease.folder / "triton/tmp.pid_7_x").mkdir()
        (lease.folder / "triton/tmp.pid_7_x/half").write_bytes(b"half")
        assert lease.seal().sealed
        assert not leaky.exists(), "it holds the API's key"
        stamped = json.loads((lease.folder / "stamp.json").read_bytes())["files"]
        assert set(stamped) == set(ARTEFACTS)
        fill(lease.folder, {str(leaky.relative_to(lease.folder)): b'{"VLLM_API_KEY": "sk-secret"}'})
    assert not leaky.exists(), "it must not lie there after the engine's end"
    with held(tmp_path) as lease:
        assert lease.state == "warm"
        assert contents(lease.folder) == ARTEFACTS | volatile
    another_boot(monkeypatch)
    with held(tmp_path) as lease:
        assert (lease.state, contents(lease.folder)) == ("warm", ARTEFACTS)


def plant(path: Path, kind: str, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            os.chdir(path.parent)
            bound.bind(path.name)


@pytest.mark.parametrize("kind", ["link", "pipe", "socket"])
def test_what_no_compiler_makes_is_removed_from_a_sealed_generation(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "precious"
    target.write_bytes(b"mine")
    sealed(tmp_path / "c")
    odd = folder(tmp_path / "c") / "inductor/zz/odd"
    plant(odd, kind, target)
    assert Store(tmp_path / "c").generations()[0].state == "broken"
    assert [problem.file for problem in Store(tmp_path / "c").verify(KEY)] == ["inductor/zz/odd"]
    assert opened(tmp_path / "c") == ("warm", "verified")
    assert not os.path.lexists(odd)
    assert target.read_bytes() == b"mine"


def test_a_link_in_an_unsealed_generation_drops_it_and_leaves_its_target(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    fill(target)
    with held(tmp_path / "c") as lease:
        (lease.folder / "inductor/zz").symlink_to(target)
    assert opened(tmp_path / "c") == ("cold", "odd_file")
    assert contents(target) == ARTEFACTS


def test_a_linked_folder_in_place_of_a_stamped_one_is_not_followed(tmp_path: Path) -> None:
    sealed(tmp_path / "c")
    real = folder(tmp_path / "c") / "triton"
    real.rename(tmp_path / "triton")
    real.symlink_to(tmp_path / "triton")
    assert opened(tmp_path / "c") == ("cold", "file_changed")
    assert (tmp_path / "triton/QWER/kernel.cubin").exists()


def test_a_link_in_place_of_a_generation_is_put_away_and_its_target_left(tmp_path: Path) -> None:
    root = tmp_path / "c"
    sealed(root)
    folder(root).rename(tmp_path / "moved")
    folder(root).symlink_to(tmp_path / "moved")
    assert Store(root).generations()[0].state == "broken"
    assert opened(root) == ("cold", "stamp_damaged")
    assert folder(root).is_dir()
    assert not folder(root).is_symlink()
    assert (tmp_path / "moved/stamp.json").exists()


def test_links_in_place_of_the_caches_own_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c/generations").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableError, match="is a link") as refused:
        Store(tmp_path / "c").open(KEY, PARTS)
    assert refused.value.reason == "not_a_folder"
    (tmp_path / "d").mkdir()
    (tmp_path / "d/locks").mkdir()
    (tmp_path / f"d/locks/{KEY}.gate").symlink_to(tmp_path / "victim")
    with pytest.raises(UnusableError) as refused:
        Store(tmp_path / "d").open(KEY, PARTS)
    assert refused.value.reason == "not_writable"
    assert not (tmp_path / "victim").exists()


def test_a_file_in_place_of_the_cache_is_told(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"")
    with pytest.raises(UnusableError, match="is no folder") as refused:
        Store(tmp_path / "c").open(KEY, PARTS)
    assert refused.value.reason == "not_a_folder"


@pytest.mark.parametrize("key", ["", "..", "../x", "a" * 31, "A" * 32, f"{KEY}/..", KEY + "\n"])
def test_what_is_no_key_opens_removes_and_verifies_nothing(tmp_path: Path, key: str) -> None:
    store = sealed(tmp_path)
    with pytest.raises(ValueError, match="no key"):
        store.open(key, PARTS)
    for refuse in (store.remove, store.verify, store.seal, store.find):
        with pytest.raises(CheckError, match="no generation"):
            refuse(key)
    assert opened(tmp_path) == ("warm", "verified")


def test_dropping_empties_counts_and_goes_on_cold(tmp_path: Path) -> None:
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        lease.drop("warm_tokens_differ")
        assert (lease.state, lease.reason, lease.rebuilt, lease.drops) == ("cold", "warm_tokens_differ", True, 1)
        assert contents(lease.folder) == {}
        fill(lease.folder)
        assert lease.seal([9]).sealed
        assert lease.drops == 1, "a cold start that gets ready proves nothing about loading"
    with held(tmp_path) as lease:
        assert (lease.state, lease.tokens, lease.drops) == ("warm", [9], 1)
        assert lease.seal().sealed
        assert lease.drops == 0


def test_dropping_a_generation_that_another_engine_uses_is_refused(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    with store.open(KEY, PARTS) as first, held(tmp_path) as second:
        for lease in (first, second):
            with pytest.raises(UnusableError, match="another engine") as refused:
                lease.drop("warm_tokens_differ")
            assert refused.value.reason == "shared"
        assert contents(first.folder) == ARTEFACTS
    assert opened(tmp_path) == ("warm", "verified")


def test_an_unfit_generation_in_use_is_neither_loaded_nor_purged(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    with store.open(KEY, PARTS) as first:
        path = first.folder / "sm70/dense-1.zip"
        path.write_bytes(b"XX")
        with pytest.raises(UnusableError, match="dense-1") as refused:
            store.open(KEY, PARTS)
        assert refused.value.reason == "broken_in_use"
        assert path.read_bytes() == b"XX"
    assert opened(tmp_path) == ("cold", "file_changed")


def test_another_boot_does_not_purge_what_an_engine_of_another_host_is_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(tmp_path) as first:
        fill(first.folder)
        another_boot(monkeypatch)
        with held(tmp_path) as second:
            assert (second.state, second.reason) == ("resumed", "shared")
            assert contents(second.folder) == ARTEFACTS
            assert second.seal([1]).sealed
        assert first.seal([2]).sealed
        assert first.tokens == [1], "the first seal's tokens stand"
    assert opened(tmp_path) == ("warm", "verified")


def test_closing_twice_is_closing(tmp_path: Path) -> None:
    lease = Store(tmp_path).open(KEY, PARTS)
    lease.close()
    lease.close()
    assert not Store(tmp_path).generations()[0].in_use


def test_generations_tell_what_they_are_and_who_uses_them(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    (store.folder / "lost+found").mkdir()
    other = {**PARTS, "plan": "q"}
    with store.open(key_of(other), other) as lease:
        fill(lease.folder, {"triton/a": b"12345"})
        found = {one.key: one for one in store.generations()}
        assert store.generations()[0].key == key_of(other), "the last used is first"
    building, whole, foreign = found[key_of(other)], found[KEY], found["lost+found"]
    assert (building.state, building.in_use, building.size_bytes, building.files) == ("building", True, 5, 1)
    assert building.parts == other
    assert (whole.state, whole.in_use, whole.tokens, whole.parts) == ("sealed", False, True, PARTS)
    assert (whole.files, whole.size_bytes) == (4, sum(map(len, ARTEFACTS.values())))
    assert foreign.state == "broken"
    assert foreign.problem is not None
    assert store.prune(0, 0) != []
    assert (store.folder / "lost+found").exists(), "it is not of the cache's making"


def test_verify_names_every_problem_and_repairs_nothing(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    assert store.verify(KEY) == []
    fill(folder(tmp_path), {"sm70/dense-1.zip": b"XX", "inductor/xy/cxyz.py": b""})
    assert {problem.file for problem in store.verify(KEY)} == {"sm70/dense-1.zip", "inductor/xy/cxyz.py"}
    assert len(contents(folder(tmp_path))) == 4
    other = {**PARTS, "plan": "q"}
    store.open(key_of(other), other).close()
    with pytest.raises(CheckError, match="not sealed"):
        store.verify(key_of(other))


def test_remove_spares_what_is_in_use(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    with store.open(KEY, PARTS), pytest.raises(CheckError, match="in use"):
        store.remove(KEY)
    assert store.remove(KEY).why == "asked"
    assert list(store.folder.iterdir()) == []
    with pytest.raises(CheckError, match="no generation"):
        store.remove(KEY)


def age(store: Store, key: str, seconds: float) -> None:
    place = Place(store.root, key)
    use = place.look().use
    assert use is not None
    from dataclasses import replace

    place.write_use(replace(use, used_at=time.time() - seconds))


def several(root: Path, ages: list[float]) -> tuple[Store, list[str]]:
    keys = []
    for number, seconds in enumerate(ages):
        parts = {**PARTS, "plan": str(number)}
        store = sealed(root, parts)
        keys.append(key_of(parts))
        age(store, keys[-1], seconds)
    return Store(root), keys


SIZE = sum(map(len, ARTEFACTS.values()))


def test_prune_by_age_takes_the_old_and_says_so(tmp_path: Path) -> None:
    store, keys = several(tmp_path, [10, 5000, 90000])
    assert store.prune(3600, dry_run=True) == [Removed(keys[2], SIZE, "age"), Removed(keys[1], SIZE, "age")]
    assert len(store.generations()) == 3
    assert store.prune(3600, keep=[keys[2]]) == [Removed(keys[1], SIZE, "age")]
    assert [one.key for one in store.generations()] == [keys[0], keys[2]]


def test_prune_by_size_takes_the_least_recently_used_until_the_rest_fits(tmp_path: Path) -> None:
    store, keys = several(tmp_path, [10, 5000, 90000, 400])
    assert store.prune(max_bytes=2 * SIZE) == [Removed(keys[2], SIZE, "size"), Removed(keys[1], SIZE, "size")]
    assert [one.key for one in store.generations()] == [keys[0], keys[3]]
    assert store.prune(max_bytes=2 * SIZE) == []


def test_prune_counts_what_is_in_use_and_never_takes_it(tmp_path: Path) -> None:
    store, keys = several(tmp_path, [10, 20])
    with store.open(keys[0], {**PARTS, "plan": "0"}):
        assert store.prune(0, 0) == [Removed(keys[1], SIZE, "age")]
        assert [one.key for one in store.generations()] == [keys[0]]


def test_a_clock_that_was_set_back_ages_nothing(tmp_path: Path) -> None:
    store, keys = several(tmp_path, [-10 * 86400, 5000])
    assert store.prune(3600) == [Removed(keys[1], SIZE, "age")]
    with store.open(keys[0], {**PARTS, "plan": "0"}) as lease:
        assert lease.state == "warm"
    assert store.find(keys[0]).used_at == pytest.approx(time.time(), abs=60)


def test_prune_clears_what_a_removal_or_an_import_left_half_done(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    fill(store.folder / f".removed-{KEY}-7-1")
    fill(store.folder / f".import-{KEY}-7-1")
    fill(store.folder / f".import-{KEY}-8-1")
    long_ago = time.time() - 2 * 86400
    os.utime(store.folder / f".import-{KEY}-7-1", (long_ago, long_ago))
    assert [one.why for one in store.prune(dry_run=True)] == ["left_over", "left_over"]
    assert store.prune() == [Removed(KEY, SIZE, "left_over")] * 2
    assert sorted(path.name for path in store.folder.iterdir()) == [f".import-{KEY}-8-1", KEY]


def test_sealing_by_hand_wants_a_generation_that_an_engine_got_ready_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    with store.open(KEY, PARTS) as lease:
        fill(lease.folder)
        assert store.seal(KEY).reason == "in_use"
        (lease.folder / "stamp.json").mkdir()  # the seal fails, as on a full disk
        assert not lease.seal(TOKENS).sealed
        (lease.folder / "stamp.json").rmdir()
    with monkeypatch.context() as patch:
        another_boot(patch)
        assert store.seal(KEY).reason == "incomplete"
    assert store.seal(KEY).sealed
    with store.open(KEY, PARTS) as lease:
        assert (lease.state, lease.tokens) == ("warm", None)


def test_sealing_by_hand_refuses_what_no_engine_got_ready_on(tmp_path: Path) -> None:
    die_holding(tmp_path)
    assert Store(tmp_path).seal(KEY).reason == "incomplete"
    with held(tmp_path):
        pass
    assert Store(tmp_path).seal(KEY).reason == "incomplete"
