"""supervisord's event listener: when the engine's program ends, or another cannot be kept up, the whole ends."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisor.childutils import get_headers, listener

from appliance import paths, rundir
from appliance.rundir.exit_record import ExitRecord

if TYPE_CHECKING:
    from collections.abc import Mapping


def verdict(event: str, payload: Mapping[str, str]) -> str | None:
    """Return why the whole must end after this event of supervisord, or None."""
    program = payload.get("processname")
    if event == "PROCESS_STATE_FATAL":
        return f"the program {program} could not be kept running; its last lines in the log say why"
    if event == "PROCESS_STATE_EXITED" and program == "engine":
        return "the guardian of the engine ended without saying why"
    return None


def main() -> int:
    """Listen until supervisord ends this."""
    # supervisord calls any other end worth a warning.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_dir = paths.run_dir()
    while True:
        headers, body = listener.wait()
        payload = get_headers(body)
        reason = verdict(headers["eventname"], payload)
        if reason:
            # The guardian's own word counts more: it knows how the engine ended.
            if ExitRecord.read(run_dir) is None:
                with suppress(OSError):
                    ExitRecord(1, reason, payload["processname"], rundir.clock()).write(run_dir)
            os.kill(os.getppid(), signal.SIGTERM)
        listener.ok()


if __name__ == "__main__":
    sys.exit(main())
