"""The compile cache in one session: opened before the engine starts, sealed when it serves, told in cache.json.

`reason` in cache.json is a stable word of appliance.cache.store or of this module.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.acceleration.report import COMPILE_CACHE_DISABLED, USER_OVERRIDE
from appliance.cache.facts import gather
from appliance.cache.key import key_of, parts_of
from appliance.cache.store import Store, UnusableError
from appliance.errors import ApplianceError
from appliance.launch.environment import compiled
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import SourcedValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from appliance.cache.records import Removed
    from appliance.cache.store import Lease, Sealed
    from appliance.rundir.plan import PlanRecord

SWITCH = "VLLM_DISABLE_COMPILE_CACHE"

NO_KEY = "no_key"
FAILED = "failed"
UNFIT = "rebuilt_too_often"
ENGINE_DIED = "engine_died"

DROPS = 2
"""How often in a row warm starts may end in throwing the generation away. Compiled code that is wrong each time it is
loaded would cost two starts instead of one for ever."""

SEAL_SECONDS = 5.0
"""How long the end of a session waits for a seal: supervisord gives the whole a bounded time."""

_WHY = {"age": "not used for too long", "size": "over the limit", "left_over": "left by a start that was cut off"}

# What an engine says that trips over an artefact: loaders of shared objects and cubins, unpicklers, vLLM.
_FAULT = re.compile(
    r"torch_compile_cache|torch_aot_compile|compile cache|torchinductor|invalid ELF header|file too short"
    r"|undefined symbol|pickle data was truncated|UnpicklingError|Ran out of input|kernel image is invalid"
    r"|CUDA_ERROR_INVALID_IMAGE|SIGBUS|SIGILL|SIGSEGV",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Tokens:
    """What the engine answered to the fixed prompts. `matches` compares it with the stamp, None without one.

    `tokens` is None where they cannot prove anything; `note` then says why.
    """

    tokens: list[int] | None
    matches: bool | None = None
    note: str | None = None


class CompileCache:
    """One session's use of the cache. `say` takes a line for the log. No method raises for a cache that fails."""

    def __init__(self, run_dir: Path, plan: PlanRecord, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._plan = plan
        self._environ = environ
        self._say = say
        self._store: Store | None = None
        self._lease: Lease | None = None
        self._temporary: Path | None = None
        self._inherited = False
        """Whether the engine loads what an earlier start compiled."""
        self._sealing: _Sealing | None = None
        self._served = False
        """Whether the engine that was started last became ready."""
        self.record = CacheStart()

    def open(self, seen: Callable[[int], None] = lambda _: None) -> None:
        """Take the generation for this start, or say why nothing is kept. May take as long as reading all of it.

        `seen` gets each number of bytes read.
        """
        switch = (self._plan.environment or {}).get(SWITCH, SourcedValue("0"))
        if str(switch.value) != "0":
            theirs = switch.source.startswith("environment")
            self._off(USER_OVERRIDE if theirs else COMPILE_CACHE_DISABLED, f"{SWITCH}={switch.value} ({switch.source})")
            return
        key: str | None = None
        parts: dict[str, str] | None = None
        try:
            parts = parts_of(self._plan, gather(self._plan, self._environ), self._environ)
            key = key_of(parts)
            self._store = Store(Path(self._plan.setting("cache_dir")))
            lease = self._store.open(key, parts, seen=seen)
        except UnusableError as error:
            self._off(error.reason, str(error), key, parts)
        except (ApplianceError, OSError) as error:
            self._off(FAILED if key else NO_KEY, str(error), key, parts)
        else:
            if lease.state == "warm" and lease.drops >= DROPS:
                lease.close()
                text = f"it was dropped {lease.drops} times in a row; `appliance cache remove` lets it be tried anew"
                self._off(UNFIT, text, key, parts)
            else:
                self._take(lease)

    def _take(self, lease: Lease) -> None:
        self._lease = lease
        self._inherited = lease.state != "cold"
        start = CacheStart(
            enabled=True,
            state=lease.state,
            reason=lease.reason,
            detail=lease.detail,
            key=lease.key,
            folder=str(lease.folder),
            parts=dict(lease.parts),
            rebuilt=lease.rebuilt,
            sealed=lease.state == "warm",
        )
        self._note(start)
        self._tell()

    def _off(self, reason: str, detail: str, key: str | None = None, parts: Mapping[str, str] | None = None) -> None:
        self._lease = None
        if self._temporary is None:
            # The folder of a cache that is off lasts as long as the session: an engine that is restarted finds its own.
            with suppress(OSError):
                self._temporary = Path(tempfile.mkdtemp(prefix="appliance-compiled-"))
        start = CacheStart(
            enabled=False,
            state="off",
            reason=reason,
            detail=detail,
            key=key,
            folder=None if self._temporary is None else str(self._temporary),
            parts=None if parts is None else dict(parts),
            rebuilt=bool(self.record.rebuilt),
            sealed=False,
            tokens_match=self.record.tokens_match,
        )
        self._note(start)
        self._tell()

    def _tell(self) -> None:
        start = self.record
        self._say(f"compile cache {start.state} ({start.reason}): {start.detail}")

    @property
    def variables(self) -> dict[str, str]:
        """What is added to the engine's environment."""
        if self._lease is not None:
            return compiled(str(self._lease.folder))
        variables = {} if self._temporary is None else compiled(str(self._temporary))
        return variables | ({SWITCH: "1"} if self.record.reason == UNFIT else {})

    @property
    def gated(self) -> bool:
        """Whether the engine has to give the tokens of the fixed prompts."""
        return self._lease is not None

    @property
    def tokens(self) -> list[int] | None:
        """What it has to answer: the tokens of the start that made the generation, None where it is made now."""
        return None if self._lease is None else self._lease.tokens

    def began(self) -> None:
        """An engine starts on it."""
        self.poll()
        self._served = False
        self._note(replace(self.record, tokens_match=None))

    def judged(self, answer: Tokens) -> str | None:
        """Take the engine's answer to the fixed prompts; return why it may not serve, or None."""
        if self._lease is None:
            return None
        if answer.note:
            self._say(f"compile cache: {answer.note}")
        self._note(replace(self.record, tokens_match=answer.matches))
        if answer.matches is not False:
            return None
        return (
            "with the compiled code of an earlier start the model gives other greedy tokens than that start did; the "
            "code is dropped, and the engine compiles anew"
        )

    def became_ready(self, tokens: list[int] | None) -> None:
        """Seal, in the background: the engine serves."""
        self._served = self._inherited = True
        if self._lease is not None and self._sealing is None:
            self._sealing = _Sealing(self._lease, tokens, self._prune)

    def _prune(self) -> list[Removed]:
        """Remove what is too old or too much. Never this generation: it is in use."""
        assert self._store is not None
        days, gigabytes = self._plan.setting("cache_days"), self._plan.setting("cache_gigabytes")
        return self._store.prune(days * 86400 or None, gigabytes * 10**9 or None)

    def poll(self, wait: float = 0.0) -> None:
        """Note a seal that is done; wait for one so many seconds."""
        if self._sealing is None:
            return
        self._sealing.thread.join(wait)
        sealing, done = self._sealing, self._sealing.outcome
        if sealing.thread.is_alive() or done is None:
            return
        self._sealing = None
        self._note(replace(self.record, sealed=done.sealed, seal_reason=done.reason or None))
        if not done.sealed:
            self._say(f"compile cache not sealed ({done.reason}): {done.text}; serving goes on")
        for removed in sealing.removed:
            self._say(f"compile cache: removed {removed.key} ({removed.size_bytes / 1e9:.1f} GB, {_WHY[removed.why]})")

    def died(self, reason: str) -> bool:
        """Count an engine that ended before it was ready; no process of it lives.

        Returns whether another start is owed, because this one loaded what an earlier one compiled, and that is gone
        now: at once when `reason` sounds like a broken artefact, else at the second time. Once until it is ready again.
        """
        lease = self._settled()
        if lease is None:
            return False
        if self._inherited and (_FAULT.search(reason) or str(lease.folder) in reason):
            return self.drop(ENGINE_DIED)
        drops = lease.drops
        try:
            lease.died()
        except UnusableError as error:
            return self._give_up(lease, error)
        return lease.drops > drops and self._emptied(lease)

    def drop(self, reason: str) -> bool:
        """Throw away what was compiled; no process of the engine lives. Returns as `died` does."""
        lease = self._settled()
        if lease is None:
            return False
        try:
            lease.drop(reason)
        except UnusableError as error:
            owed = self._give_up(lease, error)
            # What is wrong is not loaded again, even where it cannot be removed, and that is what has to be told.
            self._note(replace(self.record, reason=reason))
            return owed
        return self._emptied(lease)

    def _settled(self) -> Lease | None:
        """Return the lease once nothing is sealed any more, None where that takes too long."""
        self.poll(SEAL_SECONDS)
        return self._lease if self._sealing is None else None

    def _emptied(self, lease: Lease) -> bool:
        emptied = replace(self.record, state=lease.state, reason=lease.reason, detail=lease.detail)
        self._note(replace(emptied, rebuilt=True, sealed=False))
        self._tell()
        owed, self._inherited = self._inherited, False
        return owed

    def _give_up(self, lease: Lease, error: UnusableError) -> bool:
        lease.close()
        self._off(error.reason, str(error), lease.key, lease.parts)
        owed, self._inherited = self._inherited, False
        return owed

    def close(self, *, clean: bool) -> None:
        """Let go. After a `clean` end, which was asked for, what an engine that served has added is sealed too."""
        if clean and self._served and self._settled() is not None:
            self.became_ready(None)
        if (lease := self._settled()) is not None:
            lease.close()
        self.leave()

    def leave(self) -> None:
        """Remove what lasts no longer than the session."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _note(self, start: CacheStart) -> None:
        self.record = start
        # The run directory's trouble is told by phase.json's writer.
        with suppress(OSError):
            start.write(self._run_dir)


class _Sealing:
    """A seal under way, and the pruning after it: hashing takes seconds, and the guardian beats every second."""

    def __init__(self, lease: Lease, tokens: list[int] | None, prune: Callable[[], list[Removed]]) -> None:
        self.outcome: Sealed | None = None
        self.removed: list[Removed] = []
        self._lease, self._tokens, self._prune = lease, tokens, prune
        self.thread = threading.Thread(target=self._seal, name="seal", daemon=True)
        self.thread.start()

    def _seal(self) -> None:
        self.outcome = self._lease.seal(self._tokens)
        # A folder that cannot be read was told when it was opened.
        with suppress(ApplianceError, OSError):
            self.removed = self._prune()
