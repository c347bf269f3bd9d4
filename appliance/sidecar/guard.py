"""Who may write: a bearer token, compared in constant time, and no page of another site. ASGI, before any body is read.

A token alone would do against other sites, which cannot know it; the checks of Origin and Host hold where a browser
or a proxy adds it by itself, and against a name that a stranger's DNS points at this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

GUARDED = "/v1/cache/"
READING = frozenset({"GET", "HEAD", "OPTIONS"})

LARGEST_BODY = 4096
BODY_S = 10.0

OFF = (
    "writing is off: no token is set. Put one into a file (`openssl rand -hex 32`), name the file in "
    "APPLIANCE_SIDECAR_TOKEN_FILE and restart the sidecar"
)


class WriteGuard:
    """Refuses what may not write below GUARDED; everything else passes untouched."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self._digest = None if token is None else _digest(token.encode())
        self._refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401, 403, 408 or 413."""
        if scope["type"] != "http" or scope["method"] in READING or not _guarded(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refusal(scope, headers)
        body = b""
        if refused is None:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await _body(receive)
            except TimeoutError:
                refused = JSONResponse({"reason": f"the body did not arrive within {BODY_S:g} s"}, 408)
            except _TooLargeError:
                refused = JSONResponse({"reason": f"the body is larger than {LARGEST_BODY} bytes"}, 413)
        if refused is not None:
            await refused(scope, receive, send)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Message:
            return next(given, None) or await receive()

        await self.app(scope, again, send)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        if foreign(headers):
            return JSONResponse({"reason": "a page of another site may not write here (Origin and Host differ)"}, 403)
        if self._digest is None:
            return JSONResponse({"reason": OFF}, 403)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(token.strip().encode("latin-1")), self._digest):
            return None
        self._tell(scope, "no" if not token else "a wrong")
        return JSONResponse(
            {"reason": "the sidecar's token is wanted: Authorization: Bearer TOKEN"},
            401,
            {"www-authenticate": "Bearer"},
        )

    def _tell(self, scope: Scope, what: str) -> None:
        """One line for each refusal, without the token: what a person or a fail2ban looks for."""
        self._refused += 1
        peer = (scope.get("client") or ("unknown",))[0]
        logger.warning("refused: %s token from %s, %d refused since the start", what, peer, self._refused)


def foreign(headers: Headers) -> bool:
    """Whether a browser sent this for a page that is not the sidecar's own, or under a name that may be a stranger's.

    Only browsers send Origin. A name with a dot in it can be anybody's whose DNS answers with this machine's address;
    an address, `localhost` and a bare name cannot.
    """
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    host = headers.get("host", "")
    try:
        split = urlsplit(origin)
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    return split.scheme not in ("http", "https") or split.netloc != host or not _own(name)


def _own(name: str) -> bool:
    if "." not in name and ":" not in name:
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _guarded(path: str) -> bool:
    return path.startswith(GUARDED)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class _TooLargeError(Exception):
    pass


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise _TooLargeError
        if not message.get("more_body"):
            return bytes(body)
