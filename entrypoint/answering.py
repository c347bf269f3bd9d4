"""Asks the engine which models it serves."""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl


def reachable(host: str) -> str:
    """Return where a server that listens on `host` is reached from its own machine: 0.0.0.0 is no destination."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host or "127.0.0.1"
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address)


def models(host: str, port: int, key: str | None, *, tls: bool = False, timeout: float = 2.0) -> tuple[str, ...] | str:
    """Return the names that `GET /v1/models` lists, or a text saying why there is no such answer.

    The certificate is not checked: it names the host that clients use, and this never leaves the machine.
    """
    connection: http.client.HTTPConnection
    if tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(reachable(host), port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(reachable(host), port, timeout=timeout)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        body = response.read(1 << 20)
        if response.status != 200:
            return f"GET /v1/models answers {response.status}"
        return tuple(str(one["id"]) for one in json.loads(body)["data"])
    except (OSError, http.client.HTTPException) as error:
        return f"GET /v1/models: {error}"
    except (ValueError, KeyError, TypeError):
        return "GET /v1/models answers something else than a list of models"
    finally:
        connection.close()
