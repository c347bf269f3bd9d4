"""A worker's setup at load, on a CPU: every rank decides, all agree, the report stands, strict mode refuses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from appliance import rundir
from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.vllm_plugin.sm70 import admission, operators, rank_report, route_setup, routes
from appliance.vllm_plugin.sm70.routes import Facts, RequirementError
from tests.vllm_plugin.sm70.test_routes import C32, EVERY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXPECTED = ["silu_mul", "all_reduce"]


class Alone:
    """A tensor parallel group of one."""

    rank_in_group = 0
    world_size = 1
    cpu_group: Any = None

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        assert src == 0
        return obj


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A worker's surroundings; its card has every kernel but that of all_reduce, and FP8 layers are switched off."""
    rundir.write(tmp_path, rundir.PLAN, {"profile": "p", "expected_acceleration": EXPECTED})
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path))
    monkeypatch.delenv(routes.STRICT, raising=False)
    kernels = EVERY - {"all_reduce_push"}
    facts = Facts(active=True, capability=(7, 0), kernels=kernels, operators=kernels)
    monkeypatch.setattr(route_setup, "of_this_process", lambda _plan, _cache: facts)
    view = {**vars(C32), "switches": {"fp8_dense": False}}
    monkeypatch.setattr(admission, "view_of", lambda _: type(C32)(**view))
    monkeypatch.setattr(rank_report, "_NOTES", {})
    yield tmp_path
    routes.adopt({})
    operators.use_references((), expand=True)


def test_a_worker_settles_its_routes(load: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.appliance.sm70"):
        settled = route_setup.settle(None, 0, Alone())
    assert settled.reporter is not None
    settled.reporter.close()
    assert routes.enabled("silu_mul")
    assert not routes.enabled("fp8_dense")
    whole, own = rundir.read(load, rundir.ACCELERATION), rundir.read(load / rundir.RANKS, "0.json")
    assert whole is not None
    assert own is not None
    assert whole["missing"] == {"all_reduce": "operator_missing:all_reduce_push"}
    assert whole["routes"]["all_reduce"]["details"]["not_built"] is True
    assert own["routes"]["silu_mul"]["state"] == "enabled"
    assert "source" in own["kernels"]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["SM70 route all_reduce is off: operator_missing:all_reduce_push (default); upstream serves"]


def test_strict_mode_refuses_and_leaves_the_line(load: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(routes.STRICT, "1")
    with pytest.raises(RequirementError, match=r"all_reduce \(operator_missing:all_reduce_push\)") as error:
        route_setup.settle(None, 0, Alone())
    assert rank_report.refusal(load) == str(error.value)


def test_what_fails_on_one_rank_is_off_on_all() -> None:
    on = {name: RouteState("enabled") for name in ROUTES}
    off = on | {"gdn_decode": RouteState("disabled", "selftest_failed:gdn_decode")}
    for rank in range(3):
        found = route_setup.agreed([on, off, on], rank)
        assert found["gdn_decode"].reason == "selftest_failed:gdn_decode"
        assert found["silu_mul"].state == "enabled"
