"""The first tokens of a start: they show that the engine computes, and that code compiled earlier computes the same."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from entrypoint.compile_cache import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from entrypoint.orders import Orders

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Zwei plus drei ist",
)
"""Fixed for good: stamps hold the tokens that follow. Each is shorter than any page of the prefix cache."""

LENGTH = 16
"""Tokens that are asked for each. A wrong kernel shows in the first few; a rounding that drifts takes some more."""


class FirstTokens:
    """Asks for them in a thread: they may take as long as a compiler does."""

    def __init__(self, what: Orders, *, gated: bool, expected: list[int] | None) -> None:
        """Ask; where `gated`, for the fixed prompts too, and compare with `expected` unless that is None."""
        self.status: int | None = 0
        """The HTTP status, 0 while there is none yet, None when the connection failed."""
        self.tokens = Tokens(None)
        self.doing = "first tokens"
        self._orders = what
        self._gated = gated
        self._expected = expected
        threading.Thread(target=self._ask, name="first-tokens", daemon=True).start()

    def _ask(self) -> None:
        status = self._orders.api.first_tokens(self._orders.model, self._orders.start)
        if self._gated and not unanswered(status):
            self.doing = "tokens after the fixed prompts"
            status, self.tokens = compared(self._greedy, self._expected)
        self.status = status

    def _greedy(self) -> tuple[int | None, list[int] | None]:
        """Return the HTTP status and the tokens after all prompts, one prompt at a time: a batch rounds otherwise."""
        found: list[int] = []
        status: int | None = None
        for prompt in PROMPTS:
            status, tokens = self._orders.api.greedy(self._orders.model, prompt, LENGTH, self._orders.start)
            if tokens is None:
                return status, None
            found += tokens
        return status, found


def unanswered(status: int | None) -> bool:
    """Whether it has to be asked again. A model that completes no text refuses with 4xx, and that is an answer."""
    return status is None or status >= 500


def compared(
    ask: Callable[[], tuple[int | None, list[int] | None]], expected: list[int] | None
) -> tuple[int | None, Tokens]:
    """Ask, once more where it matters, and compare. Returns the HTTP status that counts, and what was found.

    A client that comes before the engine is ready shares a batch with these prompts and changes their rounding, so one
    answer that differs proves nothing. Tokens that do not repeat at once are not kept to compare others with.
    """
    status, first = ask()
    if first is None:
        return status, Tokens(None, note=None if unanswered(status) else _NO_TEXT)
    if first == expected:
        return status, Tokens(first, matches=True)
    status, second = ask()
    if second is None:
        return status, Tokens(None, note=None if unanswered(status) else _NO_TEXT)
    if expected is not None:
        return status, Tokens(second, matches=second == expected)
    if second != first:
        return status, Tokens(None, note=_NO_REPEAT)
    return status, Tokens(first)


_NO_TEXT = "the model completes no text, so that no later start can be compared with this one"
_NO_REPEAT = "greedy tokens do not repeat in this engine, so that no later start can be compared with this one"
