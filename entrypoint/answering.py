"""Asks the engine what it serves, and for its first tokens."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
from dataclasses import dataclass

from appliance.health.address import reachable


@dataclass(frozen=True)
class Api:
    """The engine's API as the guardian reaches it: on this machine, with the key.

    The certificate is not checked: it names the host that clients use, and this never leaves the machine.
    """

    host: str
    port: int
    key: str | None = None
    tls: bool = False

    def models(self, timeout: float = 2.0) -> tuple[str, ...] | None:
        """Return the names that `GET /v1/models` lists, None when there is no such answer."""
        answer = self._ask("GET", "/v1/models", None, timeout)
        try:
            return tuple(str(one["id"]) for one in json.loads(answer[1])["data"]) if answer[0] == 200 else None
        except (ValueError, KeyError, TypeError):
            return None

    def first_tokens(self, model: str, timeout: float) -> int | None:
        """Let the engine sample two tokens; return the HTTP status, None when there was no answer.

        What is compiled on first use is compiled then, and not while somebody waits for an answer. A temperature,
        because the greedy path leaves the sampler out.
        """
        wish = {"model": model, "prompt": "Hello", "max_tokens": 2, "temperature": 1.0}
        return self._ask("POST", "/v1/completions", json.dumps(wish), timeout)[0]

    def greedy(self, model: str, prompt: str, length: int, timeout: float) -> tuple[int | None, list[int] | None]:
        """Return the HTTP status and the ids of exactly `length` greedy tokens after `prompt`, None without them."""
        wish = {"model": model, "prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True}
        # The salt keeps it from continuing what the prefix cache has of an earlier time.
        wish |= {"return_token_ids": True, "cache_salt": secrets.token_hex(16)}
        status, body = self._ask("POST", "/v1/completions", json.dumps(wish), timeout)
        try:
            ids = json.loads(body)["choices"][0]["token_ids"] if status == 200 else None
        except (ValueError, LookupError, TypeError):
            return status, None
        whole = isinstance(ids, list) and len(ids) == length and all(type(one) is int for one in ids)
        return status, ids if whole else None

    def _ask(self, method: str, path: str, body: str | None, timeout: float) -> tuple[int | None, bytes]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(timeout)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(1 << 20)
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if not self.tls:
            return http.client.HTTPConnection(reachable(self.host), self.port, timeout=timeout)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(reachable(self.host), self.port, timeout=timeout, context=context)
