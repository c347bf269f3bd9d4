"""A hub on the loopback interface: what a download asks of a real one, and each way in which it can go wrong."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

REVISION = "a" * 40
REPOSITORY = "maker/tiny"


def blob_id(content: bytes) -> str:
    """The id that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Hub:
    """Files served under REPOSITORY at REVISION; names in `lfs` have a published SHA-256.

    `break_after` maps a file to the bytes after which its connection is cut, each value once.
    """

    files: dict[str, bytes]
    lfs: set[str] = field(default_factory=set)
    url: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of every request."""
    tokens: list[str | None] = field(default_factory=list)
    break_after: dict[str, list[int]] = field(default_factory=dict)
    hang_after: dict[str, int] = field(default_factory=dict)
    """Bytes of a file after which nothing more comes while the connection stays open."""
    served: dict[str, bytes] = field(default_factory=dict)
    """What is sent in place of a file's content."""
    wanted_token: str | None = None
    refusal: tuple[int, str | None] | None = None
    """HTTP status and X-Error-Code of every answer."""
    sha: str = REVISION

    def ranges(self, name: str) -> list[str | None]:
        return [wanted for path, wanted in self.requests if path.endswith(f"/resolve/{REVISION}/{name}")]


class Handler(BaseHTTPRequestHandler):
    """Answers for the hub that `running` gives to a subclass."""

    hub: Hub

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.requests.append((path, self.headers.get("Range")))
        hub.tokens.append(self.headers.get("Authorization"))
        if hub.refusal is not None:
            self._refuse(*hub.refusal)
        elif hub.wanted_token is not None and self.headers.get("Authorization") != f"Bearer {hub.wanted_token}":
            self._refuse(401, "GatedRepo")
        elif path == f"/api/models/{REPOSITORY}/revision/{REVISION}":
            self._answer(json.dumps(_info(hub)).encode())
        elif path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self._refuse(404, "RevisionNotFound")
        elif path.startswith(f"/{REPOSITORY}/resolve/{REVISION}/"):
            self._send_file(path.removeprefix(f"/{REPOSITORY}/resolve/{REVISION}/"))
        else:
            self._refuse(404, "RepoNotFound")

    def _refuse(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, name: str) -> None:
        content = self.hub.served.get(name, self.hub.files[name])
        begin = 0
        if wanted := self.headers.get("Range"):
            begin = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        if hangs := self.hub.hang_after.get(name):
            self.wfile.write(content[begin:hangs])
            self.wfile.flush()
            while self.hub.hang_after:
                time.sleep(0.02)
            return
        breaks = self.hub.break_after.get(name) or []
        end = breaks.pop(0) if breaks else len(content)
        self.wfile.write(content[begin:end])
        if end < len(content):
            self.close_connection = True


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port while the context lasts; `hub.url` is its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HandlerOfThisHub", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.hang_after.clear()
        server.shutdown()
        thread.join()
        server.server_close()


def _info(hub: Hub) -> dict[str, Any]:
    siblings = []
    for name, content in hub.files.items():
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
        if name in hub.lfs:
            entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
        siblings.append(entry)
    return {"id": REPOSITORY, "modelId": REPOSITORY, "sha": hub.sha, "siblings": siblings, "tags": [], "private": False}
