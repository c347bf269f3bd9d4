"""The contract between the appliance's processes: small JSON files in one folder, the run directory.

`files` has the table of file names and writers, and reads and writes whole files. Every other module has the dataclass
of one record. Standard library only, and nothing else of the appliance: a probe imports this every few seconds.
"""

from appliance.rundir.files import (
    ACCELERATION,
    CACHE,
    EXIT,
    HEARTBEAT,
    PHASE,
    PLAN,
    PLUGINS,
    PREVIOUS_STEPS,
    RANKS,
    STEPS,
    TABLE,
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
    "PREVIOUS_STEPS",
    "RANKS",
    "STEPS",
    "TABLE",
    "clear",
    "clock",
    "read",
    "share",
    "write",
]
