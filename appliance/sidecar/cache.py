"""GET /v1/cache, and what changes it: POST /v1/cache/prune, /verify, /seal and DELETE /v1/cache/KEY behind a token."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Depends, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import ValidationError
from starlette.convertors import StringConvertor, register_url_convertor

from appliance.errors import CheckError
from appliance.sidecar import answers
from appliance.sidecar.cache_jobs import Action, Busy, Job, Jobs
from appliance.sidecar.records import UNAVAILABLE, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.cache.store import Generation, Store
    from appliance.sidecar.cache_state import CacheState, Look

    Work = Callable[[Job], Any]

AT_ONCE_S = 2.0
"""A job that ends within this time is answered with 200 and its result, a longer one with 202."""

WRITING: dict[int | str, dict[str, Any]] = UNAVAILABLE | {
    202: {"model": answers.CacheJob, "description": "Under way; GET /v1/cache tells its progress."},
    400: {"model": answers.Problem, "description": "The body is no text."},
    401: {"model": answers.Problem, "description": "The sidecar's token is missing or wrong."},
    403: {"model": answers.Problem, "description": "The sidecar has no token, or another site's page asks."},
    404: {"model": answers.Problem, "description": "There is no such generation."},
    408: {"model": answers.Problem, "description": "The body did not arrive in time."},
    409: {"model": answers.Problem, "description": "The generation is in use, or another job is under way."},
    413: {"model": answers.Problem, "description": "The body is too large."},
    422: {"model": answers.Problem, "description": "The body or the key is not what is wanted."},
}

BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="The sidecar's token, APPLIANCE_SIDECAR_TOKEN.")
"""Only for the description: appliance.sidecar.guard has asked for it before."""


class _KeyConvertor(StringConvertor):
    """A part of a path that is a key; anything else is another path."""

    regex = "[0-9a-f]{32}"


register_url_convertor("generation", _KeyConvertor())


class NoSuchGeneration(Exception):  # noqa: N818 - answered with 404, not an error of the sidecar
    """The text says which."""


class InUse(Exception):  # noqa: N818 - answered with 409
    """The text says what is in use."""


def router(state: CacheState, jobs: Jobs, *, writable: bool) -> APIRouter:
    """Return the endpoints over the cache that `state` finds."""
    routes = APIRouter(prefix="/v1/cache", tags=["cache"])

    @routes.get("", summary="The compile cache: generations, sizes, what is in use, disk space", responses=UNAVAILABLE)
    async def cache() -> answers.Cache:
        """What is on the volume now, and the last job."""
        return described(await asyncio.to_thread(state.fresh), jobs.last, writable=writable)

    routes.include_router(_writing(state, jobs))
    return routes


def _writing(state: CacheState, jobs: Jobs) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(BEARER)], responses=WRITING)

    @routes.post("/prune", summary="Remove generations by age and size", response_model=answers.CacheJob)
    async def cache_prune(asked: Annotated[answers.Prune, Body()]) -> Response:
        """Never one in use, nor the running engine's."""
        look = await asyncio.to_thread(state.fresh)
        return await _answered(state, jobs, "prune", None, _prune(state.store(), look, asked))

    @routes.post("/verify", summary="Hash every file of sealed generations", response_model=answers.CacheJob)
    async def cache_verify(asked: Annotated[answers.Verify, Body()]) -> Response:
        """Changes nothing; what is wrong is told by key."""
        look = await asyncio.to_thread(state.fresh)
        wanted = [one for one in look.generations if one.state == "sealed"]
        if asked.key is not None:
            wanted = [_found(look, asked.key)]
        return await _answered(state, jobs, "verify", asked.key, _verify(state.store(), wanted))

    @routes.post("/seal", summary="Stamp a generation that no engine uses", response_model=answers.CacheJob)
    async def cache_seal(asked: Annotated[answers.Seal, Body()]) -> Response:
        """One in use is sealed by its own engine, at its first ready."""
        _idle(_found(await asyncio.to_thread(state.fresh), asked.key))
        return await _answered(state, jobs, "seal", asked.key, _seal(state.store(), asked.key))

    @routes.delete(
        "/{key:generation}", summary="Remove a generation that no engine uses", response_model=answers.CacheJob
    )
    async def cache_remove(key: answers.Key) -> Response:
        """It is compiled anew when a start needs it."""
        look = await asyncio.to_thread(state.fresh)
        _idle(_found(look, key))
        if key == look.current:
            raise InUse(f"generation {key} is that of the running engine")
        store = state.store()
        return await _answered(state, jobs, "remove", key, lambda _: asdict(store.remove(key)))

    return routes


def _prune(store: Store, look: Look, asked: answers.Prune) -> Work:
    keep = [look.current] if look.current else []

    def work(_: Job) -> list[dict[str, Any]]:
        removed = store.prune(asked.max_age_s, asked.max_bytes, keep, dry_run=asked.dry_run)
        return [asdict(each) for each in removed]

    return work


def _verify(store: Store, wanted: list[Generation]) -> Work:
    def work(job: Job) -> dict[str, Any]:
        job.total = sum(one.size_bytes for one in wanted)
        return {one.key: [asdict(problem) for problem in store.verify(one.key, job.advance)] for one in wanted}

    return work


def _seal(store: Store, key: str) -> Work:
    def work(_: Job) -> dict[str, Any]:
        sealed = store.seal(key)
        if not sealed.sealed:
            raise CheckError(sealed.text or sealed.reason)
        return asdict(sealed)

    return work


def described(look: Look, job: Job | None, *, writable: bool) -> answers.Cache:
    """Return the answer for what `look` found. Raises Unavailable when it found no cache."""
    if look.folder is None or look.problem is not None:
        raise Unavailable(look.problem or "the cache's folder is not known")
    return answers.Cache(
        folder=str(look.folder),
        writable=writable,
        size_bytes=sum(one.size_bytes for one in look.generations),
        disk_free_bytes=look.disk_free,
        disk_total_bytes=look.disk_total,
        start=start_of(look),
        generations=[_generation(one, look.current) for one in look.generations],
        job=None if job is None else job_of(job),
    )


def start_of(look: Look) -> answers.CacheStart | None:
    """Return what cache.json says, None where it is not there or has another form."""
    try:
        return None if look.start is None else answers.CacheStart.model_validate(look.start.to_json())
    except ValidationError:
        return None


def job_of(job: Job) -> answers.CacheJob:
    """Return a job as it is told."""
    return answers.CacheJob(
        number=job.number,
        action=job.action,
        key=job.key,
        state=job.state,
        started_at=job.started_at.isoformat(timespec="seconds"),
        seconds=round(job.seconds, 1),
        done_bytes=job.done,
        total_bytes=job.total,
        result=job.result,
        problem=job.problem,
    )


def _generation(one: Generation, current: str | None) -> answers.Generation:
    return answers.Generation(
        key=one.key,
        state=one.state,
        size_bytes=one.size_bytes,
        files=one.files,
        created_at=_utc(one.created_at),
        used_at=_utc(one.used_at),
        in_use=one.in_use,
        current=one.key == current,
        problem=one.problem,
        parts=dict(one.parts),
    )


def _utc(seconds: float | None) -> str | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def _found(look: Look, key: str) -> Generation:
    if look.problem is not None:
        raise Unavailable(look.problem)
    found = look.find(key)
    if found is None:
        raise NoSuchGeneration(f"there is no generation {key}; GET /v1/cache lists them")
    return found


def _idle(generation: Generation) -> None:
    if generation.in_use:
        raise InUse(f"generation {generation.key} is in use by an engine")


async def _answered(state: CacheState, jobs: Jobs, action: Action, key: str | None, work: Work) -> Response:
    """Start the job and answer for it: with its result when it is quick, else that it is under way."""
    job = jobs.start(action, key, work)
    end = time.monotonic() + AT_ONCE_S
    while not job.over.is_set() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    if not job.over.is_set():
        return JSONResponse(job_of(job).model_dump(mode="json"), 202)
    # Scrapes and the page tell the last look; without one they would know of no cache for a while.
    await asyncio.to_thread(state.look)
    if job.state == "failed":
        # In use since a moment, not sealed, gone since a moment, a disk that refuses: none can be done now.
        return JSONResponse({"reason": job.problem}, 409)
    return JSONResponse(job_of(job).model_dump(mode="json"))


REFUSALS: dict[type[Exception], int] = {Busy: 409, InUse: 409, NoSuchGeneration: 404}
"""What the application answers for what the endpoints raise."""
