"""Generations on disk: opened for a start, sealed at its first ready, verified, pruned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
"""The engine's variables that name a folder of compiled artefacts, with their place in a generation."""


class UnusableError(CheckError):
    """This start has no cache. `reason` is a stable word: `read_only`, `not_writable`, `disk_full`, `no_locks`, `busy`,
    `broken_in_use`, `shared`, `not_a_directory`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Problem:
    """What is wrong with one file of a generation; `file` is relative to it."""

    file: str
    what: str


@dataclass(frozen=True)
class Generation:
    """What is known of a generation without reading its files. Times in seconds since the epoch, None if not recorded.

    `files` counts files and `size_bytes` adds them up, stamped or not. `in_use` is true while an engine holds it, and
    while it is opened, verified, exported or removed.
    """

    key: str
    parts: dict[str, str]
    state: Literal["sealed", "building", "broken"]
    size_bytes: int
    files: int
    created_at: float | None
    used_at: float | None
    in_use: bool
    problem: str | None = None


@dataclass(frozen=True)
class Removed:
    """A generation that was removed, or would be in a dry run. `why` is `asked`, `age`, `size` or `left_over`."""

    key: str
    size_bytes: int
    why: str


@dataclass(frozen=True)
class Sealed:
    """Whether a generation is sealed now, and if not, why, as a stable word and as one line."""

    sealed: bool
    reason: str = ""
    text: str = ""


class Lease:
    """A generation in use by this process. Keep it as long as an engine runs on it; close it at the end.

    `folder` is where the engine writes: see FOLDERS, and `sm70` for our own artefacts; each is there. `state` is `warm`
    when everything stamped was verified, `resumed` when an unsealed generation goes on, `cold` when it is empty.
    `reason` is a stable word: `new`, `verified`, `verified_read_only`, `interrupted`, `shared`, or why the old one was
    dropped: `file_changed`, `power_lost`, `died_twice`, `stamp_damaged`, `odd_file`, `moved`, or what `drop` was given.
    `detail` is one line for people, with the first bad file. `rebuilt` is true when something was dropped.
    """

    folder: Path
    state: Literal["cold", "warm", "resumed"]
    reason: str
    detail: str
    key: str
    parts: dict[str, str]

    @property
    def rebuilt(self) -> bool:
        """Whether an earlier generation of this key was dropped, by `open` or by `drop`."""
        raise NotImplementedError

    @property
    def tokens(self) -> list[int] | None:
        """The greedy tokens in the stamp, None when it has none or the generation is not sealed."""
        raise NotImplementedError

    def seal(self, tokens: list[int] | None = None) -> Sealed:
        """Stamp what is there now. Call it at each first ready, in every state, and again at a clean end.

        A ready engine proves the generation, so deaths are forgotten. Files that came since the last stamp are hashed
        and join it; a warm generation with none costs nothing. `tokens` go into a stamp that has none yet. Never
        raises for the disk: a full or read-only one is told in the answer, and serving goes on.
        """
        raise NotImplementedError

    def drop(self, reason: str) -> None:
        """Empty the generation; the lease goes on as `cold` with `reason`. No engine of this lease may run meanwhile.

        Raises UnusableError(`shared`) when another engine holds it too: this start then has no cache.
        """
        raise NotImplementedError

    def died(self) -> None:
        """Count an engine that ended before it was ready; before the next one starts on this lease.

        After the second one in a row the generation is dropped (`died_twice`), whatever its hashes say.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of it. What was not sealed stays as it is, and the next start decides. May be called twice.

        A start that is closed counts as ended by intent; a process that is killed closes nothing and counts as died.
        """
        raise NotImplementedError

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """The compile cache under `root`, the folder of the setting cache_dir. Nothing is created before `open`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def generations(self) -> list[Generation]:
        """Return all generations, the last used first; broken ones with their problem. Reads no artefact."""
        raise NotImplementedError

    def open(self, key: str, parts: Mapping[str, str], *, scratch: Path | None = None) -> Lease:
        """Take the generation of `key` for a start, and decide whether it is warm, resumed or cold.

        Hashes every stamped file. A read-only volume with a sealed generation is warm from a private copy under
        `scratch` (the system's temporary folder when None), which `close` removes. Waits while the generation is
        being verified, exported or opened by another. Raises UnusableError when there can be no cache.
        """
        raise NotImplementedError

    def remove(self, key: str) -> Removed:
        """Remove a generation. Raises CheckError when it is in use or is not there, or the disk refuses."""
        raise NotImplementedError

    def prune(
        self,
        max_age_s: float | None = None,
        max_bytes: int | None = None,
        keep: Collection[str] = (),
        *,
        dry_run: bool = False,
    ) -> list[Removed]:
        """Remove what was not used for `max_age_s`, then the least recently used until `max_bytes` are kept.

        Never one in use, nor one whose key is in `keep`; what an interrupted removal or import left goes too.
        """
        raise NotImplementedError

    def verify(self, key: str) -> list[Problem]:
        """Hash every stamped file of a sealed generation; return what is wrong, nothing when all is well.

        Raises CheckError when there is no such generation, or it is not sealed.
        """
        raise NotImplementedError

    def seal(self, key: str) -> Sealed:
        """Seal a generation that no engine uses, as it is. Its maker gave no tokens, so no start can compare them."""
        raise NotImplementedError
