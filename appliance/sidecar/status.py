"""GET /status: one page for people, without outside resources; GET /v1/status: what it refreshes itself with."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from appliance.sidecar import answers, view

if TYPE_CHECKING:
    from jinja2 import Template

    from appliance.sidecar.services import Services

FOLDER = Path(__file__).with_name("page")

PATH = "/status"

INSTEAD: dict[int | str, dict[str, Any]] = {307: {"description": "For a browser: the page is at /status."}}


def router(services: Services) -> APIRouter:
    """Return both endpoints over `services`."""
    routes = APIRouter(tags=["status"])

    @routes.get("/v1/status", summary="Phase, requests, tokens a second: what the status page shows")
    async def status() -> answers.Status:
        """Cheap enough to be asked every second."""
        return view.status(services)

    @routes.get(PATH, summary="The same for people, as a page", response_class=HTMLResponse)
    async def status_page() -> HTMLResponse:
        """Topology, profile and why, routes with reasons, compile cache, throughput."""
        await services.engine.refreshed()
        await asyncio.to_thread(services.cache.fresh)
        html = template().render(view.page(services), css=asset("status.css"), js=asset("status.js"))
        return HTMLResponse(html, headers={"content-security-policy": policy()})

    return routes


def is_wanted(request: Request) -> bool:
    """Whether a browser asks, which takes HTML before anything else."""
    first = request.headers.get("accept", "").partition(",")[0].partition(";")[0]
    return first.strip().lower() == "text/html"


def instead() -> Response:
    """Send a browser to the page."""
    return RedirectResponse(PATH, 307, {"vary": "accept"})


@cache
def policy() -> str:
    """The page's own style and script by their hashes, and questions to the sidecar itself; nothing else."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash('status.css')}'",
            f"script-src '{_hash('status.js')}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


@cache
def asset(name: str) -> str:
    """Return a file that stands in the page."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def template() -> Template:
    """Return the page's template, which escapes whatever it is given."""
    import jinja2

    loader = jinja2.FileSystemLoader(FOLDER)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("status.html")


def _hash(name: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(asset(name).encode()).digest()).decode()
