"""Whether the ports are free, and who holds one that is not."""

from __future__ import annotations

import errno
import socket

from appliance.doctor.check import Check


def port(name: str, host: str, number: int, trouble: OSError | None, holder: str | None) -> Check:
    """Judge one listening address. `trouble` is what listening there raises, `holder` names who has it."""
    title = f"{name} port"
    wanted = f"{host} port {number} free"
    option, variable = f"--{name}-port", f"APPLIANCE_{name.upper()}_PORT"
    if name == "engine":
        option, variable = "--port", "APPLIANCE_PORT"
    match trouble:
        case None:
            return Check(f"{name}_port", title, "ok", f"{host} port {number} is free", wanted)
        case OSError(errno=errno.EADDRINUSE):
            found = f"{host} port {number} is in use by {holder or 'a process of another user'}"
            todo = f"stop that, or choose another port with {option} or {variable}"
        case OSError(errno=errno.EACCES):
            found = f"this user may not listen on port {number}"
            todo = f"choose a port from 1024 up with {option} or {variable}"
        case OSError(errno=errno.EADDRNOTAVAIL) | socket.gaierror():
            found = f"{host} is no address of this machine"
            todo = "set the address to 127.0.0.1, or to 0.0.0.0 for every interface"
        case _:
            found = f"listening on {host} port {number} fails ({trouble.strerror or trouble})"
            todo = f"choose another port with {option} or {variable}"
    return Check(f"{name}_port", title, "fail", found, wanted, todo)


def listen_trouble(host: str, number: int) -> OSError | None:
    """Listen on the address for a moment; return what that raises, None when it works."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            # As servers do: connections of an earlier one that wait for their end do not hold the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        return error
    return None


def holder_of(number: int) -> str | None:
    """Return the process that listens on a port, or None where this user may not see it."""
    import psutil

    try:
        found = [held for held in psutil.net_connections("tcp") if held.laddr and held.laddr.port == number]
        pids = [held.pid for held in found if held.status == psutil.CONN_LISTEN and held.pid]
        if not pids:
            return None
        process = psutil.Process(pids[0])
        words = " ".join(process.cmdline())
        return f"process {process.pid} ({words[:60] or process.name()})"
    except psutil.Error:
        return None
