"""Whose time a profile shows, on a clock that the test moves."""

from __future__ import annotations

import cProfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks.host_share import LIMIT_MS, figure, kind, text, to_json
from tests.benchmarks.profile_share import profiling_cost, shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.profile_share import Kind


def modules() -> dict[str, Any]:
    """Functions in files of ours, of vLLM's and of neither; `spend` moves the clock."""
    clock = [0.0]
    sources = {
        "/ours/layer.py": "def layer():\n spend(1.0)\n theirs()\n small()\n",
        "/vllm/model.py": "def theirs():\n spend(10.0)\n small()\n small()\n small()\n inner()\n",
        "/ours/inner.py": "def inner():\n spend(2.0)\n",
        "/torch/small.py": "def small():\n spend(4.0)\n deeper()\n",
        "/torch/deeper.py": "def deeper():\n spend(8.0)\n",
    }
    namespace: dict[str, Any] = {"clock": clock}
    exec(compile("def spend(s):\n clock[0] += s\n", "/clock.py", "exec"), namespace)
    for file, source in sources.items():
        exec(compile(source, file, "exec"), namespace)
    return namespace


def whose(file: str) -> Kind:
    return "ours" if file.startswith("/ours/") else "theirs" if file.startswith("/vllm/") else "neither"


def profiled(run: Callable[[], object], timer: Callable[[], float]) -> Any:
    profile = cProfile.Profile(timer)
    profile.enable()
    run()
    profile.disable()
    return profile.getstats()


def test_what_ours_calls_of_others_is_ours_and_what_vllm_calls_is_not() -> None:
    functions = modules()
    clock = functions["clock"]
    stats = profiled(functions["layer"], lambda: clock[0])
    found = shares(stats, whose)
    # `spend` is neither: ours by who called it. One of four calls of `small` and what is below it is ours.
    whole = 1 + 10 + 2 + 4 * (4 + 8)
    assert sum(found.values()) == pytest.approx((1 + 2 + 4 + 8) / whole)
    assert not any("/vllm/" in label for label in found)


def test_the_cost_of_profiling_is_taken_off() -> None:
    functions = modules()
    clock = functions["clock"]
    stats = profiled(functions["layer"], lambda: clock[0])
    # Of eleven calls of `spend`, which alone moves the clock.
    cost = 0.5
    spends = 1 + 1 + 1 + 4 + 4
    whole = 61 - cost * spends
    ours = (15 / 61) * whole
    assert sum(shares(stats, whose, cost).values()) == pytest.approx(ours / whole)
    assert sum(shares(stats, whose, cost=9.0).values()) == 0
    assert 0 <= profiling_cost(time.perf_counter) < 1e-3


@pytest.mark.parametrize(
    ("file", "of"),
    [
        ("/x/site-packages/vllm/v1/worker/gpu_worker.py", "theirs"),
        ("/x/site-packages/torch/_ops.py", "neither"),
        ("", "neither"),
    ],
)
def test_files_are_told_apart(file: str, of: str) -> None:
    assert kind(file) == of


def test_files_of_the_repository_are_ours_and_the_benchmarks_are_not() -> None:
    from appliance.vllm_plugin.sm70 import counters
    from sm70_kernels import dispatch
    from tests.benchmarks import host_share

    assert [kind(str(module.__file__)) for module in (counters, dispatch, host_share)] == ["ours", "ours", "theirs"]


def test_the_figure_is_the_median_and_says_whether_it_keeps_the_limit() -> None:
    steps = [{"a": 0.05, "b": 0.1}, {"a": 0.2}, {"a": 0.05}]
    slow = figure("eager step", steps, [0.01, 0.5, 0.009])
    assert (slow.steps, slow.step_ms, slow.within) == (3, 10.0, False)
    assert (slow.median_ms, slow.max_ms) == pytest.approx((1.5, 2.0))
    assert slow.functions == pytest.approx({"a": 1.0, "b": 1 / 3})
    quick = figure("graph", [{"a": 0.01}], [0.01])
    assert quick.within
    told = to_json([slow, quick], 8)
    assert (told["within"], told["sequences"], told["figures"][1]["within"]) == (False, 8, True)
    assert f"limit {LIMIT_MS:g} ms  over" in text([slow, quick], 8)
