"""The contract between the appliance's processes: small JSON files in one folder, the run directory.

`files` has the names of the files and their writers, and reads and writes whole files. Standard library only, and
nothing else of the appliance: a probe imports this every few seconds.
"""

from appliance.rundir.files import (
    ACCELERATION,
    CACHE,
    EXIT,
    HEARTBEAT,
    PHASE,
    PLAN,
    PLUGINS,
    RANKS,
    STEPS,
    clear,
    clock,
    read,
    share,
    write,
)

__all__ = [
    "ACCELERATION",
    "CACHE",
    "EXIT",
    "HEARTBEAT",
    "PHASE",
    "PLAN",
    "PLUGINS",
    "RANKS",
    "STEPS",
    "clear",
    "clock",
    "read",
    "share",
    "write",
]
