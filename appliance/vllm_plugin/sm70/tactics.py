"""The dense kernels' tactics: timed by rank 0, once per card and kernel hash, kept in the cache, used by all ranks."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 180.0
"""Seconds that timing may take; past it the tables' first choices serve, and the report says so."""

logger = logging.getLogger("vllm.appliance.sm70")


class Group(Protocol):
    """What is needed of vLLM's tensor parallel group (`vllm.distributed.get_tp_group()`)."""

    rank_in_group: int
    world_size: int
    cpu_group: Any

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:  # noqa: ANN401 - any picklable object
        """Return rank `src`'s object on every rank, over the CPU."""


@dataclass(frozen=True)
class Outcome:
    """What rank 0 found. `text` is the tuning record as JSON, None where the tables' first choices serve."""

    text: str | None
    source: str
    """`timed`, `cache`, or `table`."""
    reason: str = ""
    """Why it is `table`; empty otherwise."""
    seconds: float = 0.0

    def told(self) -> dict[str, Any]:
        """The form that the report has under `tactic`."""
        sha = None if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()
        told = {"source": self.source, "record_sha256": sha, "seconds": round(self.seconds, 1)}
        return told | ({"reason": self.reason} if self.reason else {})


HAS_M8N8K4 = ((7, 0), (7, 5))
"""Compute capabilities with the instruction that dense kernels are made of; later ones take a hundred times longer."""


class _PastLimitError(Exception):
    pass


def file_name(card: str, source_hash: str, ranks: int) -> str:
    """Return the name of a card's record in the cache; another card, kernel source or number of ranks has another."""
    return f"tactics-{re.sub(r'[^A-Za-z0-9]+', '-', card).strip('-').lower()}-{source_hash[:16]}-tp{ranks}.json"


def settle(group: Group, folder: Path | None, *, limit: float = LIMIT_S) -> Outcome:
    """Let every rank of `group` use the same tactics, and return where they come from. Call it on all ranks at once.

    `folder` is in the cache volume, None where nothing is kept. Rank 0 reads the record there or times the candidates,
    with a line for each choice, for at most `limit` seconds; what it cannot do becomes the outcome's reason. Raises
    ValueError, one line, where this rank's card is another than rank 0's.
    """
    outcome = _first_rank(folder, group.world_size, limit) if group.rank_in_group == 0 else None
    shared = group.broadcast_object(outcome, src=0)
    assert isinstance(shared, Outcome)
    if shared.text is not None:
        _adopt(shared.text)
    return shared


def _first_rank(folder: Path | None, ranks: int, limit: float) -> Outcome:
    import torch

    from sm70_kernels.registry import source_hash

    file = None if folder is None else folder / file_name(torch.cuda.get_device_name(), source_hash(), ranks)
    if file is not None and (kept := _kept(file)) is not None:
        logger.info("SM70 tactics: taken from %s", file)
        return Outcome(kept, "cache")
    began = time.monotonic()
    capability = torch.cuda.get_device_capability()
    if capability not in HAS_M8N8K4:
        reason = (
            f"compute capability {capability[0]}.{capability[1]} emulates mma.sync.m8n8k4, so its times choose nothing"
        )
        logger.info("SM70 tactics: the tables' first choices serve: %s", reason)
        return Outcome(None, "table", reason)
    if file is not None and (earlier := _past_limit(file)):
        logger.warning("SM70 tactics: the tables' first choices serve: %s", earlier)
        return Outcome(None, "table", earlier)
    try:
        text = _timed(ranks, began + limit)
    except _PastLimitError:
        reason = f"timing took longer than {limit:.0f} s"
        _keep(_mark(file), reason)
    except Exception as error:  # noqa: BLE001 - told, and served without
        # Whatever went wrong, the tables' first choices are right, only perhaps slower.
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    else:
        _keep(file, text)
        return Outcome(text, "timed", seconds=time.monotonic() - began)
    logger.warning("SM70 tactics: the tables' first choices serve: %s", reason)
    return Outcome(None, "table", reason, time.monotonic() - began)


def _timed(ranks: int, end: float) -> str:
    import torch

    from sm70_kernels.tuning import record, tune

    def report(line: str) -> None:
        logger.info("SM70 tactics: %s", line)
        if time.monotonic() > end:
            raise _PastLimitError

    return record.dump(tune.tune(ranks, torch.device("cuda", torch.cuda.current_device()), report))


def _kept(file: Path) -> str | None:
    """Return the record of an earlier start, None where there is none that holds."""
    import torch

    from sm70_kernels.dense import tune
    from sm70_kernels.tuning import record

    try:
        text = file.read_text(encoding="utf-8")
        tune.choices(record.parse(text), torch.cuda.get_device_name())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("SM70 tactics: %s is not used (%s), the candidates are timed again", file, error)
        return None
    return text


def _mark(file: Path | None) -> Path | None:
    """Return the file that says of a record's file that it could not be timed within the limit."""
    return None if file is None else file.with_suffix(".past-limit")


def _past_limit(file: Path) -> str:
    """Return why timing is not tried again after an earlier start that ran past its limit, empty where it is."""
    mark = _mark(file)
    try:
        told = mark.read_text(encoding="utf-8").strip() if mark else ""
    except (OSError, ValueError):
        return ""
    return f"at an earlier start {told}; remove {mark} to time again" if told else ""


def _keep(file: Path | None, text: str) -> None:
    if file is None:
        return
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        logger.warning("SM70 tactics: %s cannot be written (%s); the next start times again", file, error)


def _adopt(text: str) -> None:
    import torch

    from sm70_kernels.dense import choice, tune
    from sm70_kernels.tuning import record

    choice.adopt(tune.choices(record.parse(text), torch.cuda.get_device_name()))
