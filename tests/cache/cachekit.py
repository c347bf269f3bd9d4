"""A store with small artefacts in it, and the powers that be: other boots, processes that die, users without rights."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from appliance.cache.key import key_of
from appliance.cache.store import Lease, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

PARTS = {"image": "sha256:1", "vllm": "vllm 0.19.1", "gpu": "Tesla V100-SXM2-16GB sm_70", "plan": "p"}
KEY = key_of(PARTS)
ARTEFACTS = {
    "vllm/torch_compile_cache/torch_aot_compile/ab/rank_0_0/model": b"graph" * 500,
    "inductor/xy/cxyz.py": b"def call(): ...\n",
    "triton/QWER/kernel.cubin": bytes(range(256)) * 20,
    "sm70/dense-1.zip": b"PK",
}
TOKENS = [5, 3, 8]


def fill(folder: Path, files: dict[str, bytes] | None = None) -> None:
    """Write artefacts as a compiler does: whole, under another name, then renamed."""
    for name, data in (ARTEFACTS if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{os.getpid()}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)


def sealed(root: Path, parts: dict[str, str] | None = None, tokens: list[int] | None = None) -> Store:
    """Return a store with one sealed generation that nobody uses."""
    store = Store(root, patience=5)
    parts = PARTS if parts is None else parts
    with store.open(key_of(parts), parts) as lease:
        fill(lease.folder)
        assert lease.seal(TOKENS if tokens is None else tokens).sealed
    return store


def contents(folder: Path) -> dict[str, bytes]:
    """Return the artefacts in a generation's folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("stamp.json", "use.json")
    }


def opened(root: Path) -> tuple[str, str]:
    """Open and close; return state and reason."""
    with Store(root, patience=5).open(KEY, PARTS) as lease:
        return lease.state, lease.reason


def another_boot(monkeypatch: pytest.MonkeyPatch, name: str = "another") -> None:
    """Let the machine have been started anew."""
    monkeypatch.setattr("appliance.cache.durable.boot_id", lambda: name)


def die_holding(root: Path, files: dict[str, bytes] | None = None) -> None:
    """Let a process open the generation, write, and be killed before its engine is ready."""
    in_process(_open_and_die, root, files, survives=False)


def _open_and_die(root: Path, files: dict[str, bytes] | None) -> None:
    lease = Store(root, patience=5).open(KEY, PARTS)
    fill(lease.folder, files)
    os.kill(os.getpid(), 9)


def in_process(work: Callable[..., Any], *arguments: Any, survives: bool = True) -> None:
    """Run `work` in a process of its own; fail when it fails, or ends otherwise than by being killed."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == (0 if survives else -9)


def as_user(uid: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Run `work` in a child that has no rights beyond those of `uid`; only root can do this."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            work(*arguments)
            status = 0
        except BaseException:  # noqa: BLE001 - the child must not return into pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@contextmanager
def held(root: Path) -> Iterator[Lease]:
    """Use the generation as another engine does."""
    with Store(root, patience=5).open(KEY, PARTS) as lease:
        yield lease
