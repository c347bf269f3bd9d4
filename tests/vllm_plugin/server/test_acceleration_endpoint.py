"""GET /v1/sm70/acceleration as the engine answers it, without vLLM around it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from appliance import rundir
from appliance.acceleration import report
from appliance.rundir.plan import PlanRecord
from appliance.vllm_plugin.server import acceleration_endpoint
from appliance.vllm_plugin.server.acceleration_endpoint import PATH, AccelerationEndpoint, ranks, world_size

if TYPE_CHECKING:
    from pathlib import Path


def ask(run_dir: Path, path: str = PATH, method: str = "GET") -> httpx.Response:
    inner = Starlette(routes=[Route("/{rest:path}", lambda _: PlainTextResponse("vLLM's"), methods=["GET", "POST"])])

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(AccelerationEndpoint(inner, run_dir))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.request(method, path)

    return asyncio.run(asked())


def tell(run_dir: Path, rank: str, pid: object = None, state: str = "enabled", reason: str | None = None) -> None:
    (run_dir / rundir.RANKS).mkdir(exist_ok=True)
    routes = {"compile_graph": {"state": state, "reason": reason, "details": {"hits": 1}}}
    rundir.write(run_dir / rundir.RANKS, f"{rank}.json", {"pid": os.getpid() if pid is None else pid, "routes": routes})


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Any]:
    record = report.all_not_applicable("portable_smollm2")
    rundir.write(tmp_path, rundir.ACCELERATION, record)
    return record


def test_it_is_the_report_that_the_engine_wrote(written: dict[str, Any], tmp_path: Path) -> None:
    answer = ask(tmp_path)
    assert answer.status_code == 200
    assert answer.json() == {**written, "ranks": [], "missing_ranks": [], "differing": {}, "kernel_builds": {}}


def test_every_rank_is_asked(written: dict[str, Any], tmp_path: Path) -> None:
    rundir.write(tmp_path, rundir.PLAN, {"arguments": {"tensor_parallel_size": {"value": 3}}})
    tell(tmp_path, "0")
    tell(tmp_path, "2", state="disabled", reason="user_override")
    body = ask(tmp_path).json()
    assert (body["ranks"], body["missing_ranks"]) == ([0, 2], [1])
    assert body["routes"]["compile_graph"]["reason"] == "ranks_differ:2=user_override"


def test_what_dead_processes_and_strangers_left_is_not_a_rank(tmp_path: Path) -> None:
    tell(tmp_path, "0")
    for rank, pid in (("1", 2**22 + 1), ("2", 0), ("3", -1), ("4", "1"), ("5", 2**70), ("odd", os.getpid())):
        tell(tmp_path, rank, pid)
    (tmp_path / rundir.RANKS / "6.json").write_text("{")
    assert set(ranks(tmp_path)) == {0}


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"routes": 1, "expected_acceleration": []}'])
def test_a_report_that_cannot_be_read_is_said(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / rundir.ACCELERATION).write_text(content)
    answer = ask(tmp_path)
    assert answer.status_code == 503
    assert answer.json()["reason"].startswith(("the engine has written no readable", "acceleration.json does not"))


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_it_is_only_read(method: str, written: dict[str, Any], tmp_path: Path) -> None:
    assert ask(tmp_path, method=method).status_code == 405


@pytest.mark.parametrize("path", ["/v1/models", "/v1/sm70/acceleration/", "/v1/sm70", "/v1/sm70/accelerations"])
def test_everything_else_is_vllms(path: str, tmp_path: Path) -> None:
    assert ask(tmp_path, path).text == "vLLM's"


@pytest.mark.parametrize(
    ("plan", "size"),
    [
        (None, 1),
        ({}, 1),
        ({"arguments": []}, 1),
        ({"arguments": {"tensor_parallel_size": {"value": 4}, "pipeline_parallel_size": {"value": 2}}}, 8),
        ({"arguments": {"tensor_parallel_size": {"value": "4"}, "pipeline_parallel_size": None}}, 1),
        ({"arguments": {"tensor_parallel_size": {"value": 10**9}}}, 1),
    ],
)
def test_the_plan_says_how_many_ranks_there_are(plan: dict[str, Any] | None, size: int) -> None:
    assert world_size(None if plan is None else PlanRecord.from_json(plan)) == size


def test_being_polled_fills_no_log(tmp_path: Path) -> None:
    AccelerationEndpoint(Starlette(), tmp_path)
    logger = logging.getLogger("uvicorn.access")
    assert acceleration_endpoint._not_polled in logger.filters

    def shown(path: str, status: int = 200) -> bool:
        return bool(logger.filter(logging.LogRecord("", 20, "", 0, "%s", ("peer", "GET", path, "1.1", status), None)))

    assert not shown(PATH)
    assert not shown(PATH + "?x=1")
    assert shown(PATH, 401)
    assert shown("/v1/models")
    logger.removeFilter(acceleration_endpoint._not_polled)
