"""The compile cache with the real engine: what one start compiled the next one loads, proves, and drops when it is bad.

The tests build on each other: a start takes most of a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cache.stamp import parse
from appliance.cache.store import Store
from tests.system.engine.engine_harness import environment
from tests.system.engine.serve_harness import KEY, START_S, Server
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

OTHER_KEY = "sk-test-rotated-44"


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cached")


@pytest.fixture
def serve(smollm2: Path, state_dir: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Start, wait for the seal, ask for one answer, stop; returns cache.json and the log."""
    servers: list[Server] = []

    def one(key: str = KEY) -> dict[str, Any]:
        server = Server(smollm2, state_dir, state_dir / "serve.log", "--no-sidecar", key=key)
        servers.append(server)
        server.wait_ready(seconds=2 * START_S)  # one of them starts its engine twice
        until(lambda: server.cache["sealed"])
        assert server.chat(4).status_code == 200
        server.process.terminate()
        assert server.process.wait(timeout=60) == 0
        return {**server.cache, "log": server.log, "restarts": server.phase["restarts"]}

    yield one
    for server in servers:
        server.stop()


def stamp_of(cache: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(Path(cache["folder"], "stamp.json").read_text()))


def test_a_cold_start_is_sealed_with_what_was_compiled_and_said(serve: Callable[..., dict[str, Any]]) -> None:
    cache = serve()
    assert (cache["state"], cache["reason"], cache["rebuilt"]) == ("cold", "new", False)
    stamp = stamp_of(cache)
    assert any(name.startswith("inductor/") and name.endswith(".so") for name in stamp["files"])
    assert len(stamp["tokens"]) == 48


def test_a_warm_start_with_another_key_loads_it_and_says_the_same(
    serve: Callable[..., dict[str, Any]], state_dir: Path
) -> None:
    (generation,) = Store(state_dir / "cache").generations()
    before = json.loads((state_dir / "cache" / "generations" / generation.key / "stamp.json").read_text())
    cache = serve(OTHER_KEY)
    assert (cache["key"], cache["state"], cache["tokens_match"]) == (generation.key, "warm", True)
    after = stamp_of(cache)
    assert after["files"] == before["files"], "nothing was compiled again"
    assert after["tokens"] == before["tokens"]
    assert Store(state_dir / "cache").verify(generation.key) == []


def test_a_stamp_with_other_tokens_stops_the_engine_and_makes_all_anew(
    serve: Callable[..., dict[str, Any]], state_dir: Path
) -> None:
    (generation,) = Store(state_dir / "cache").generations()
    file = state_dir / "cache" / "generations" / generation.key / "stamp.json"
    stamp = parse(file.read_bytes())
    assert stamp.tokens is not None
    right = list(stamp.tokens)
    file.write_bytes(replace(stamp, tokens=(*right[:-1], right[-1] + 1)).dump())
    cache = serve()
    assert "gives other greedy tokens than that start did; the code is dropped" in cache["log"]
    assert (cache["state"], cache["reason"], cache["rebuilt"]) == ("cold", "warm_tokens_differ", True)
    assert cache["restarts"] == 0
    assert stamp_of(cache)["tokens"] == right


def test_a_poisoned_artefact_is_never_loaded(serve: Callable[..., dict[str, Any]], state_dir: Path) -> None:
    (generation,) = Store(state_dir / "cache").generations()
    folder = state_dir / "cache" / "generations" / generation.key
    bad = next(path for path in sorted(folder.rglob("*.so")) if path.is_file())
    data = bytearray(bad.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bad.write_bytes(data)
    cache = serve()
    assert (cache["state"], cache["reason"], cache["rebuilt"]) == ("cold", "file_changed", True)
    assert str(bad.relative_to(folder)) in cache["detail"]
    assert bad.read_bytes() != data, "it was compiled again"


def vllm_hash(folder: Path, key: str, before: str) -> str:
    code = f"""
{before}
from vllm import envs
from vllm.config.utils import hash_factors
print(hash_factors(envs.compile_factors()))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment(folder, VLLM_API_KEY=key, VLLM_LOGGING_LEVEL="ERROR"),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1]


def test_vllms_own_hash_does_not_follow_the_key(tmp_path: Path) -> None:
    take = "import os; from appliance.vllm_plugin.server import api_key; api_key.take(os.environ)"
    assert vllm_hash(tmp_path, KEY, take) == vllm_hash(tmp_path, OTHER_KEY, take)
    assert vllm_hash(tmp_path, KEY, "") != vllm_hash(tmp_path, OTHER_KEY, ""), "else there is nothing to mend"
