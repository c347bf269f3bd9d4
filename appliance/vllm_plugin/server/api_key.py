"""The API's key inside the engine: taken out of the environment before vLLM looks there.

vLLM 0.19.1 hashes VLLM_API_KEY into the name of its compile cache, so that a new key would compile everything anew, and
writes it as it is into cache_key_factors.json beside the compiled code. Processes that it spawns inherit it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

VARIABLE = "VLLM_API_KEY"

_taken: str | None = None


def take(environ: MutableMapping[str, str]) -> str | None:
    """Remove the key from `environ` and keep it in this process alone. Returns it, None where none is set."""
    global _taken  # noqa: PLW0603 - vLLM constructs our middleware itself and hands it nothing
    _taken = environ.pop(VARIABLE, None) or _taken
    return _taken


def held(environ: Mapping[str, str]) -> str | None:
    """Return the key that was taken, or else the one in `environ`: where nothing took it, it still guards."""
    return _taken or environ.get(VARIABLE) or None
