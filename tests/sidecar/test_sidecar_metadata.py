"""/v1/version, /v1/metadata, /v1/topology, /v1/profile, /v1/sm70/acceleration, and what all answers share."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.openapi.models import OpenAPI

from appliance import __version__, paths, rundir
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.profiles import catalogue
from appliance.sidecar import answers, metadata
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services
from appliance.topology import recorded
from appliance.topology.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    Get = Callable[..., httpx.Response]
    Put = Callable[..., None]

pytestmark = pytest.mark.usefixtures("complete_build")


NEED_A_PLAN = ("/v1/metadata", "/v1/topology", "/v1/profile")

ENDPOINTS = (
    "/",
    "/health/startup",
    "/health/live",
    "/health/ready",
    "/v1/version",
    *NEED_A_PLAN,
    "/v1/sm70/acceleration",
    "/metrics",
    "/v1/cache",
    "/v1/status",
    "/status",
)

WRITING = {"/v1/cache/prune": "post", "/v1/cache/verify": "post", "/v1/cache/seal": "post", "/v1/cache/{key}": "delete"}


def test_metadata_tells_what_is_served_and_where(get: Get, put: Put) -> None:
    put()
    body = get("/v1/metadata").json()
    assert body["profile"] == "qwen38_27b_nvfp4_dflash2"
    assert body["served_model_name"] == "qwen3.8-27b"
    assert body["engine_url"] == "http://127.0.0.1:8000"
    assert body["gpus"] == [0, 1, 2, 3]
    assert body["licence"] == "Apache-2.0"
    profile = catalogue.load(body["profile"])
    assert profile.draft
    for told, source in ((body["model"], profile.model), (body["draft"], profile.draft.source)):
        assert (told["repository"], told["revision"]) == (source.repository, source.revision)
        assert told["origin"] == "download"
    assert "/health/ready" in {endpoint["path"] for endpoint in body["endpoints"]}


def test_metadata_of_an_engine_without_draft_behind_tls(get: Get, put: Put) -> None:
    put(plan={"draft": None, "arguments": {"ssl_certfile": {"value": "/c.pem", "source": "vllm options"}}})
    body = get("/v1/metadata").json()
    assert body["draft"] is None
    assert body["engine_url"] == "https://127.0.0.1:8000"


def test_started_at_is_the_wall_clock_of_the_start(get: Get, put: Put) -> None:
    put(phase={"started": rundir.clock() - 100})
    started = datetime.fromisoformat(get("/v1/metadata").json()["started_at"])
    assert started.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - started - timedelta(seconds=100)) < timedelta(seconds=30)


@pytest.mark.parametrize("phase", [None, {"at": 0.0}, {"started": None}, {"started": "noon"}])
def test_started_at_is_not_made_up(phase: dict[str, Any] | None, get: Get, put: Put) -> None:
    put(phase=phase)
    assert get("/v1/metadata").json()["started_at"] is None


CARD = "---\nlanguage: en\nlicense: {}\nlicense_link: x\n---\n# Model\nlicense: none\n"


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (CARD.format("apache-2.0"), "apache-2.0"),
        (CARD.format("'mit'").replace("\n", "\r\n"), "mit"),
        (CARD.format(""), None),
        ("---\nlanguage: en\n---\nlicense: mit\n", None),
        ("# Model\nlicense: mit\n", None),
        ("", None),
    ],
)
def test_the_licence_is_the_model_cards_own(card: str, licence: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert metadata.licence_of(tmp_path) == licence


def test_no_model_card_is_no_licence(tmp_path: Path) -> None:
    assert metadata.licence_of(tmp_path) is None
    assert metadata.licence_of(tmp_path / "nowhere") is None
    (tmp_path / "README.md").write_bytes(b"---\n" + b"\xff" * 100_000)
    assert metadata.licence_of(tmp_path) is None


@pytest.mark.parametrize(
    ("topology", "islands", "full_mesh"),
    [
        ("4xv100-sxm2-16gb", [[0, 1, 2, 3]], True),
        ("4xv100-pcie-split", [[0, 1], [2, 3]], False),
        ("none", [], False),
    ],
)
def test_topology_tells_machine_islands_and_choice(
    topology: str, islands: list[list[int]], full_mesh: bool, get: Get, put: Put
) -> None:
    machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
    put(plan={"machine": machine.to_json()})
    body = get("/v1/topology").json()
    assert body["peer_islands"] == islands
    assert body["full_mesh"] is full_mesh
    assert body["chosen_gpus"] == [0, 1, 2, 3]
    assert len(body["machine"]["gpus"]) == len(machine.gpus)
    assert body["description"]


@pytest.mark.parametrize("topology", sorted(file.stem for file in paths.TOPOLOGIES.glob("*.json")))
def test_the_machine_of_a_plan_is_the_machine_that_was_planned_for(topology: str) -> None:
    machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
    assert machine_of(json.loads(json.dumps(machine.to_json()))) == machine


def test_profile_tells_why_and_why_not_the_others(get: Get, put: Put) -> None:
    put()
    body = get("/v1/profile").json()
    assert (body["name"], body["selected"]) == ("qwen38_27b_nvfp4_dflash2", "best fit")
    assert "NVLink joins every pair" in body["gpus_reason"]
    others = {other["name"]: other for other in body["others"]}
    assert others.keys() == set(catalogue.names()) - {body["name"]}
    assert all(other["reasons"] for other in others.values())
    assert others["qwen38_27b_fp8_c32"]["fits"]
    assert not others["qwen38_27b_fp8_tp2"]["fits"]


def test_profile_tells_every_value_with_its_source(get: Get, put: Put) -> None:
    put(plan={"warnings": ["a warning"]})
    body = get("/v1/profile").json()
    assert body["settings"]["port"] == {"value": 8000, "source": "default"}
    assert body["arguments"]["tensor_parallel_size"] == {"value": 4, "source": f"profile {body['name']}"}
    assert body["warnings"] == ["a warning"]
    assert body["memory"]["fits"] is True


def test_the_api_key_is_in_no_answer(get: Get, run_dir: Path, put: Put, tmp_path: Path) -> None:
    put()
    machine = recorded.load(paths.TOPOLOGIES / "4xv100-sxm2-16gb.json")
    environ = {"APPLIANCE_API_KEY": "sk-of-the-test", "HF_TOKEN": "hf-of-the-test"}
    rundir.write(run_dir, rundir.PLAN, resolve(Request({}, (), environ, machine, tmp_path)).to_json())
    for path in ENDPOINTS:
        answer = get(path)
        assert answer.status_code == 200
        assert "of-the-test" not in answer.text
    assert get("/v1/profile").json()["settings"]["api_key"]["value"] == "set"


@pytest.mark.needs("engine")
def test_version_takes_the_word_of_the_engines_process(get: Get, put: Put, run_dir: Path) -> None:
    put()
    (run_dir / rundir.PLUGINS).mkdir()
    rundir.write(
        run_dir / rundir.PLUGINS, "7.json", {"pid": 7, "role": "core", "appliance": "core's", "vllm": "core's"}
    )
    rundir.write(
        run_dir / rundir.PLUGINS,
        "8.json",
        {"pid": 8, "role": "api", "appliance": "0.0.9", "vllm": "0.19.1+x", "python": "3.11.7", "source": "beef"},
    )
    assert get("/v1/version").json() == {
        "appliance": __version__,
        "engine_appliance": "0.0.9",
        "engine_source": "beef",
        "vllm": "0.19.1+x",
        "torch": "2.10.0",
        "python": "3.11.7",
        "kernels": None,
    }


def test_version_is_known_of_the_sidecar_alone_when_nothing_runs(get: Get) -> None:
    body = get("/v1/version").json()
    assert body.pop("appliance") == __version__
    assert set(body.values()) == {None}


def test_version_tells_the_kernel_build_where_there_is_one(get: Get, put: Put) -> None:
    put(acceleration={"kernels": "c0ffee"})
    assert get("/v1/version").json()["kernels"] == "c0ffee"


def test_acceleration_is_the_engines_report_with_its_age(get: Get, put: Put, run_dir: Path) -> None:
    put(acceleration={"a later field": [1]})
    written = time.time() - 3600
    os.utime(run_dir / rundir.ACCELERATION, (written, written))
    body = get("/v1/sm70/acceleration").json()
    assert 3600 <= body["age_s"] < 3700
    assert body["routes"]["gdn_decode"]["state"] == "enabled"
    assert body["a later field"] == [1]
    assert body["schema"] == 1


def test_no_acceleration_report_yet(get: Get, put: Put) -> None:
    put(acceleration=None)
    answer = get("/v1/sm70/acceleration")
    assert answer.status_code == 503
    assert answer.json() == {"reason": "the engine has written no acceleration.json yet"}


@pytest.mark.parametrize("path", NEED_A_PLAN)
def test_a_missing_plan_is_said(path: str, get: Get, put: Put) -> None:
    put(plan=None)
    answer = get(path)
    assert answer.status_code == 503
    assert answer.json() == {"reason": "there is no plan.json: the appliance has not started on this folder"}


@pytest.mark.parametrize("path", NEED_A_PLAN)
@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_an_unreadable_plan_is_said(path: str, content: bytes, get: Get, run_dir: Path) -> None:
    (run_dir / rundir.PLAN).write_bytes(content)
    answer = get(path)
    assert answer.status_code == 503
    assert answer.json() == {"reason": "plan.json is not readable as a JSON object"}


@pytest.mark.parametrize("path", NEED_A_PLAN)
@pytest.mark.parametrize("record", [{}, {"settings": [], "machine": 3, "arguments": 1, "title": {}}])
def test_a_plan_of_another_version_is_said(path: str, record: dict[str, Any], get: Get, run_dir: Path) -> None:
    rundir.write(run_dir, rundir.PLAN, record)
    answer = get(path)
    assert answer.status_code == 503
    assert answer.json()["reason"].startswith(f"plan.json does not have the form that appliance {__version__} writes")
    assert answer.json()["reason"].endswith("engine and sidecar must be of one version")


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("topology", ["8xv100-dgx1", "none", None])
def test_every_answer_has_the_documented_shape(
    path: str, topology: str | None, get: Get, put: Put, run_dir: Path, tmp_path: Path
) -> None:
    if topology:
        machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
        put(plan=resolve(Request({}, (), {}, machine, tmp_path)).to_json())
    answer = get(path)
    operation = create_app(Services(Options(run_dir))).openapi()["paths"][path]["get"]
    documented = operation["responses"][str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in documented
    if kind == "application/json":
        model = getattr(answers, documented[kind]["schema"]["$ref"].rpartition("/")[2])
        assert model.model_validate(answer.json()).model_dump(mode="json") == answer.json()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_head_is_answered_as_get_and_nothing_else_is(path: str, get: Get, put: Put) -> None:
    put()
    assert get(path, "HEAD").status_code == get(path).status_code
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        refused = get(path, method)
        assert refused.status_code == 405
        assert refused.json() == {"reason": "this endpoint is read-only"}


@pytest.mark.parametrize("path", [*ENDPOINTS, "/openapi.json", "/no/such/path"])
def test_every_answer_carries_the_security_headers(path: str, get: Get, put: Put) -> None:
    put()
    headers = get(path).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "access-control-allow-origin" not in headers


def test_an_unknown_path_is_said_in_json(get: Get) -> None:
    answer = get("/health")
    assert answer.status_code == 404
    assert answer.json() == {"reason": "there is no /health; GET / lists every endpoint"}


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_that_loads_from_elsewhere(path: str, get: Get) -> None:
    assert get(path).status_code == 404


def test_an_internal_error_is_json_without_the_inside(get: Get, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put()

    def broken(plan: dict[str, Any]) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(metadata, "wired", broken)
    answer = get("/v1/topology")
    assert answer.status_code == 500
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json() == {"reason": "internal error: RuntimeError; the sidecar's log tells more"}


def test_the_index_lists_every_endpoint(get: Get) -> None:
    body = get("/").json()
    assert {endpoint["path"] for endpoint in body["endpoints"]} == {*ENDPOINTS, *WRITING}
    assert all(endpoint["summary"] for endpoint in body["endpoints"])
    assert get(body["openapi"]).status_code == 200


def test_the_openapi_document_is_valid_and_whole(get: Get) -> None:
    document = get("/openapi.json").json()
    OpenAPI.model_validate(document)
    assert document["info"]["version"] == __version__
    schemas = document["components"]["schemas"]
    ids = [one["operationId"] for operations in document["paths"].values() for one in operations.values()]
    assert sorted(ids) == sorted(
        (
            *("index", "health_startup", "health_live", "health_ready", "status", "status_page"),
            *("version", "metadata", "topology", "profile", "acceleration", "metrics"),
            *("cache", "cache_prune", "cache_verify", "cache_seal", "cache_remove"),
        )
    )
    for path, operations in document["paths"].items():
        (method,) = operations
        assert method == WRITING.get(path, "get"), f"{path} writes"
        assert operations[method]["summary"]
        assert ("security" in operations[method]) is (path in WRITING)
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for name, schema in schemas.items():
        assert schema["description"], name


def _references(node: object) -> list[str]:
    if isinstance(node, list):
        return [reference for item in node for reference in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [reference for value in node.values() for reference in _references(value)]
