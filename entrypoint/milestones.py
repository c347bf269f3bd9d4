"""What a line of vLLM's log tells about a start. Pure; the texts are those of vLLM 0.19.1."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# A line of either kind says that the weights are in place. A missed one only skips the phase `warming`.
_LOADED = re.compile(
    r"Loading weights took|Model loading took|Warming up model|Compiling a graph|Dynamo bytecode transform"
    r"|Available KV cache memory|GPU KV cache size|Graph capturing|Capturing CUDA graphs|init engine \(profile"
)
# vLLM repeats this every 60 s while it waits for ever: it is the opposite of progress.
_WAITING = re.compile(r"No available shared memory broadcast block")
_BAR = re.compile(r"^(?P<title>.*?):?\s+\d{1,3}%.*?\b(?P<done>[\d.]+[kMGT]?)/(?P<total>[\d.]+[kMGT]?)\s*\[")
_PREFIX = re.compile(
    r"^(?:\([\w:. -]+pid=\d+\)\s*)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+(?:\d\d-\d\d \d\d:\d\d:\d\d\s+)?(?:\[[^\]]*\]\s*)?)?"
)
_DIGITS = re.compile(r"\d+")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b|^error: |: error: "
    # appliance.vllm_plugin.server.serve's own word on arguments that vLLM refuses.
    r"|^appliance: the engine refuses"
)
_CONSEQUENCE = re.compile(r"Engine core initialization failed|See root cause|EngineDeadError|died unexpectedly")


@dataclass(frozen=True)
class Line:
    """One line without its prefix. `key` is equal for lines that differ only in figures, unless they are a bar's."""

    text: str
    level: str
    key: str
    bar: str | None
    """A progress bar as a person wants it: `Loading safetensors checkpoint shards 1/2`."""

    @property
    def progress(self) -> bool:
        """Whether a line of a new key means that the start goes on."""
        return bool(self.key) and not _WAITING.search(self.text)

    @property
    def loaded(self) -> bool:
        """Whether the weights are in place."""
        return bool(_LOADED.search(self.text))


def read(raw: str) -> Line:
    """Take one line of the engine's output apart."""
    match = _PREFIX.match(raw)
    prefix = match.end() if match else 0
    text = raw[prefix:].strip()
    level = ((match["level"] if match else None) or "INFO").lower()
    if bar := _BAR.match(text):
        shown = f"{bar['title'].strip()} {bar['done']}/{bar['total']}"
        return Line(text, level, shown, shown)
    return Line(text, level, _DIGITS.sub("#", text), None)


RECENT_S = 30.0
"""An error that is older has nothing to do with the engine's end: a serving engine logs the mistakes of its clients."""


class Errors:
    """Keeps the line that best tells why the engine died: the root cause rather than its consequences."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cause = self._last = ("", float("-inf"))

    def see(self, line: Line) -> None:
        """Look at one line."""
        now = self._clock()
        seen = (line.text, now)
        if _CONSEQUENCE.search(line.text):
            if now - self._last[1] > RECENT_S:
                self._last = seen
        elif _EXCEPTION.search(line.text):
            # The first exception of a chain is the cause; later ones tell who noticed.
            if now - self._cause[1] > RECENT_S:
                self._cause = seen
        elif line.level in ("error", "critical") and not line.text.startswith(("Traceback", "File ", "^")):
            self._last = seen

    @property
    def best(self) -> str | None:
        """The line to show, at most 300 characters."""
        now = self._clock()
        found = next((text for text, at in (self._cause, self._last) if now - at <= RECENT_S), None)
        return found[:300] if found else None
