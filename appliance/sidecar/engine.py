"""The engine as the sidecar asks it: its acceleration report, with the key, and never in the way of an answer."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from appliance import rundir
from appliance.health import address
from appliance.rundir.plan import PlanRecord
from appliance.sidecar.background import Periodic
from appliance.sidecar.records import is_report

if TYPE_CHECKING:
    from appliance.sidecar.options import Options

PATH = "/v1/sm70/acceleration"

TIMEOUT_S = 3.0
EVERY_S = 20.0
FRESH_S = 2.0
"""A report younger than this is not asked for anew."""

WAIT_S = 1.0
"""How long an answer waits for a report that is being asked for; a busy engine needs a few milliseconds."""

LARGEST_BYTES = 4 << 20

Record = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What the engine said last. Times are on time.monotonic(), `at_wall` is the same moment as time.time()."""

    report: Record | None = None
    at: float | None = None
    at_wall: float | None = None
    problem: str | None = "the engine has not been asked yet"
    """Why the last attempt failed, None when it did not."""
    attempts: int = 0


class Engine:
    """Asks in a thread of its own; `known` is what came of it."""

    def __init__(self, options: Options) -> None:
        self._run_dir = options.run_dir
        self._url = options.engine_url
        self._key = options.engine_key
        self.known = Known()
        self.asking_since: float | None = None
        self.thread = Periodic("ask-the-engine", EVERY_S, self.ask)

    def ask(self) -> None:
        """Ask once; `known` says what came of it."""
        self.asking_since = time.monotonic()
        try:
            report, problem = self._ask()
        finally:
            self.asking_since = None
        known = replace(self.known, problem=problem, attempts=self.known.attempts + 1)
        if report is not None:
            known = replace(known, report=report, at=time.monotonic(), at_wall=time.time())
        self.known = known

    async def refreshed(self) -> Known:
        """Return what is known, after a short wait for fresh news. Does not wait for an engine that did not answer."""
        before = self.known
        fresh = before.at is not None and time.monotonic() - before.at < FRESH_S
        if fresh or not self.thread.runs:
            return before
        hangs = self.asking_since is not None and time.monotonic() - self.asking_since > WAIT_S
        self.thread.wake()
        if hangs or (before.attempts and before.problem):
            return before
        end = time.monotonic() + WAIT_S
        while self.known.attempts == before.attempts and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return self.known

    def problem(self) -> str | None:
        """Why the engine's word is not fresh, None when it is."""
        since = self.asking_since
        if since is not None and (waited := time.monotonic() - since) > WAIT_S:
            return f"the engine was asked {waited:.0f} s ago and has not answered"
        return self.known.problem

    def _ask(self) -> tuple[Record | None, str | None]:
        url = self._url or planned_url(PlanRecord.read(self._run_dir))
        if url is None:
            return None, f"no {rundir.PLAN} says where the engine is, and neither does APPLIANCE_ENGINE_URL"
        try:
            status, body = _get(urlsplit(url), self._key, verified=self._url is not None)
        except TimeoutError:
            return None, f"the engine does not answer within {TIMEOUT_S:g} s"
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Never the text of a ValueError: http.client's has the header in it that it refuses, and so the key.
            why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            return None, f"the engine cannot be reached: {why}"
        return _understood(status, body)


def planned_url(plan: PlanRecord | None) -> str | None:
    """Return where the plan's engine is reached from its own machine, None when no plan says so."""
    if plan is None or plan.arguments is None:
        return None
    host, port = plan.setting("host"), plan.setting("port")
    try:
        return None if host is None else address.url(str(host), int(port), tls=plan.tls)
    except (TypeError, ValueError):
        return None


def _get(url: SplitResult, key: str | None, *, verified: bool) -> tuple[int, bytes]:
    host = url.hostname or ""
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context()
        if not verified:
            # The plan's certificate names the host that clients use; this does not leave the machine.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, url.port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, url.port, timeout=TIMEOUT_S)
    with closing(connection):
        connection.request("GET", url.path + PATH, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(LARGEST_BYTES)


def _understood(status: int, body: bytes) -> tuple[Record | None, str | None]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        record = None
    if status in (401, 403):
        return None, f"the engine refuses the key (HTTP {status}); give the sidecar the engine's APPLIANCE_API_KEY_FILE"
    if status != 200:
        reason = record.get("reason") if isinstance(record, dict) else None
        return None, f"the engine answers {PATH} with HTTP {status}" + (f": {str(reason)[:200]}" if reason else "")
    if not is_report(record):
        return None, f"the engine's answer to {PATH} is no acceleration report"
    return record, None
