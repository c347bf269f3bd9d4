"""Binds the sidecar's port and answers on it until SIGTERM."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    import asyncio

    from fastapi import FastAPI

REQUEST_S = 10.0
"""A peer has this long to send a request; every client of the sidecar sends its own within milliseconds."""

HEAD_BYTES = 16 * 1024
"""The longest request line with headers; a longer one is answered with 400."""

DRAIN_S = 3
"""How long answers in work may take after SIGTERM."""


class _BoundedProtocol(H11Protocol):
    """Closes a connection that takes too long over its request.

    uvicorn's own timer starts with the first answer and each byte resets it, so slow peers could hold every descriptor
    and the probes would fail.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it too
        super().connection_made(transport)
        self._arm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(REQUEST_S, self._expire)

    def _disarm(self) -> None:
        if self._deadline:
            self._deadline.cancel()

    def _expire(self) -> None:
        # An answer in work arms it anew when it is complete. Before the first request uvicorn leaves `cycle` at None.
        if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on `host`:`port` (0: any free port).

    Raises ConfigurationError for a host that is no address, CheckError when the port cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(
            f'sidecar host "{host}" is not an address or a name that resolves; use 127.0.0.1, or 0.0.0.0 for all'
        ) from error
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        choose = "choose another with --port or APPLIANCE_SIDECAR_PORT"
        if error.errno == errno.EADDRINUSE:
            raise CheckError(
                f"sidecar port {port} on {host} is in use by another program; end that program or {choose}"
            ) from error
        if error.errno == errno.EACCES:
            raise CheckError(
                f"sidecar port {port} on {host} is not permitted to user {os.getuid()}; {choose}"
            ) from error
        raise CheckError(
            f"the sidecar cannot listen on {host} port {port}: {error.strerror}; give an address of this machine with "
            "--host or APPLIANCE_SIDECAR_HOST"
        ) from error


def url(listener: socket.socket) -> str:
    """The address under which `listener` is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Answer on `listener` until SIGTERM or SIGINT, then let the answers in work finish."""
    prepared(app).run(sockets=[listener])


def prepared(app: FastAPI) -> uvicorn.Server:
    """Return the server of `app`, not yet running."""
    config = uvicorn.Config(
        app,
        http=_BoundedProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return uvicorn.Server(config)
