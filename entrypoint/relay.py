"""One log stream out of many programs: cut into lines, cleaned, without secrets, plain or as JSON lines."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from entrypoint.milestones import read

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 64 * 1024
"""Bytes of one line that are shown together; a longer one is cut, so that no program can fill the memory."""

HIDDEN = "[hidden]"
_NOT_FOR_THE_ENGINE = ("APPLIANCE_*KEY*", "APPLIANCE_*TOKEN*", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""The appliance's own, and the hub's: the model is there before the engine starts, which never goes to the network."""
SECRET_NAMES = ("VLLM_API_KEY", *_NOT_FOR_THE_ENGINE)
_SHORTEST_SECRET = 4  # hiding every "a" would leave nothing to read, and protects nothing

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# A log line can carry what a client sent: no control character of it may reach a terminal.
_CONTROLS = {code: None for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) != "\t"}


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that no line may show, longest first, so that one inside another leaves no rest.

    Where a secret's file lies is none: the start tells it to whoever needs the key.
    """
    found = {
        word
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in SECRET_NAMES) and not name.endswith("_FILE")
        for word in (value, value.strip())
        if len(word) >= _SHORTEST_SECRET
    }
    return tuple(sorted(found, key=len, reverse=True))


def is_own_secret(name: str) -> bool:
    """Whether a variable holds a secret that no program but the appliance's own reads."""
    return any(fnmatchcase(name, pattern) for pattern in _NOT_FOR_THE_ENGINE)


@dataclass
class Redactor:
    """Hides the values of secrets."""

    secrets: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Return `text` with each secret replaced."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def raw(self, data: bytes) -> bytes:
        """Return `data` with each secret replaced."""
        for secret in self.secrets:
            data = data.replace(os.fsencode(secret), HIDDEN.encode())
        return data

    @property
    def overlap(self) -> int:
        """Bytes at the end of unfinished data in which a secret may have begun."""
        return max((len(os.fsencode(one)) for one in self.secrets), default=1) - 1


@dataclass
class Lines:
    """Cuts one program's bytes into clean lines."""

    redactor: Redactor = field(default_factory=Redactor)
    _rest: bytes = b""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes, return the lines that they completed."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = [self._clean(self.redactor.raw(line)) for line in whole]
        while len(self._rest) > LONGEST + self.redactor.overlap:
            shown = self.redactor.raw(self._rest)
            cut = min(LONGEST, max(len(shown) - self.redactor.overlap, 1))
            found.append(self._clean(shown[:cut]))
            self._rest = shown[cut:]
        return [line for line in found if line]

    def end(self) -> list[str]:
        """Return the last line when no newline ended it."""
        return self.feed(b"\n") if self._rest else []

    @staticmethod
    def _clean(line: bytes) -> str:
        # A progress bar redraws itself with carriage returns: the last state is the one that counts.
        states = [state for state in line.split(b"\r") if state.strip()]
        text = states[-1].decode("utf-8", errors="replace") if states else ""
        return _ESCAPES.sub("", text).translate(_CONTROLS).rstrip()


@dataclass
class Formatter:
    """Gives a line its final form, without the newline."""

    as_json: bool
    width: int = len("supervisor")
    """Of the program names, so that texts stand in one column."""

    def __call__(self, program: str, text: str, level: str | None = None, at: datetime | None = None) -> str:
        """Return `program | text`, or a JSON object {time, program, level, message}.

        A level that is not given is read from the text as vLLM, uvicorn and Python's logging write it.
        """
        if not self.as_json:
            return f"{program:<{self.width}} | {text}"
        record = {
            "time": (at or datetime.now(UTC)).isoformat(timespec="milliseconds"),
            "program": program,
            "level": level or read(text).level,
            "message": text,
        }
        return json.dumps(record, ensure_ascii=False)
