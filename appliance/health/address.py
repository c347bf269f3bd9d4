"""Where a server is reached from its own machine, from what it was told to listen on."""

from __future__ import annotations

import ipaddress


def reachable(host: str) -> str:
    """Return where a server that listens on `host` is reached from its own machine: 0.0.0.0 is no destination."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host or "127.0.0.1"
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address)


def url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the address of a server that listens on `host` and `port`, for its own machine."""
    found = reachable(host)
    return f"{'https' if tls else 'http'}://{f'[{found}]' if ':' in found else found}:{port}"
