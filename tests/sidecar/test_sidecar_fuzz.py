"""Everything that the OpenAPI document allows, and more, asked by schemathesis: no 500, and answers as documented."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import schemathesis
from hypothesis import HealthCheck, settings

from appliance.bench import run_directory
from appliance.cache.key import key_of
from appliance.cache.store import Store
from appliance.sidecar.app import create_app
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services

if TYPE_CHECKING:
    from fastapi import FastAPI
    from schemathesis import Case

TOKEN = "t0ken-of-the-test-long-enough"


def application() -> FastAPI:
    """A ready engine's run directory and a cache, kept until this process ends."""
    application.folder = tempfile.TemporaryDirectory(prefix="appliance-fuzz-")  # type: ignore[attr-defined]
    folder = Path(application.folder.name)  # type: ignore[attr-defined]
    run_dir = folder / "run"
    run_dir.mkdir()
    run_directory.write_ready(run_dir)
    for name in ("one", "two"):
        parts = {"image": name}
        with Store(folder / "cache").open(key_of(parts), parts) as lease:
            lease.seal([1])
    return create_app(Services(Options(run_dir, cache_dir=folder / "cache", token=TOKEN)))


NOT_READY_IS_NO_ERROR = [schemathesis.checks.not_a_server_error]
"""503 is an answer of the probes; a 500 is in no document and fails for that."""

WITHOUT_A_TOKEN = [
    schemathesis.checks.ignored_auth,
    schemathesis.checks.missing_required_header,
]

schema = schemathesis.openapi.from_asgi("/openapi.json", application())


@schema.parametrize()
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_every_endpoint_answers_as_documented(case: Case[Any]) -> None:
    # Requests without the token are the other test's.
    case.call_and_validate(
        headers={"authorization": f"Bearer {TOKEN}"}, excluded_checks=[*NOT_READY_IS_NO_ERROR, *WITHOUT_A_TOKEN]
    )


@schema.parametrize()
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_without_the_token_it_answers_as_documented_too(case: Case[Any]) -> None:
    case.call_and_validate(excluded_checks=[*NOT_READY_IS_NO_ERROR])
