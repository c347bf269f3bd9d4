"""The sidecar's log on standard error: one line an event, plain or as the JSON lines of the appliance's one stream."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

PROBED = ("/health/", "/metrics", "/v1/status")
"""Asked every few seconds for as long as the appliance runs, or a status page is open; they are not logged."""


def configure(form: str) -> None:
    """Log everything from INFO up in `form`, `plain` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine() if form == "json" else logging.Formatter("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # uvicorn tells each step of its start and end; one line of ours for each is enough.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(is_worth_a_line)


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn.access is shown; its arguments are client, method, path, version and status."""
    path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else None
    return not (isinstance(path, str) and path.startswith(PROBED))


class JsonLine(logging.Formatter):
    """{time, program, level, message}, as entrypoint.relay writes the other programs' lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback goes into the message."""
        return json.dumps(
            {
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
                "program": "sidecar",
                "level": record.levelname.lower(),
                "message": super().format(record),
            },
            ensure_ascii=False,
        )
