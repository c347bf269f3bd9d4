"""The list of the sidecar's endpoints, out of its own OpenAPI description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.sidecar.answers import Endpoint

if TYPE_CHECKING:
    from fastapi import FastAPI


def listed(app: FastAPI) -> list[Endpoint]:
    """Return every endpoint of `app` with its summary."""
    return [
        Endpoint(path=path, summary=operation["summary"])
        for path, operations in app.openapi()["paths"].items()
        for operation in operations.values()
    ]
