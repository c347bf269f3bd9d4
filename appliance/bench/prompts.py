"""Prompts of an exact number of tokens, each its own, in the tokens of the tokenizer that is served.

Token IDs are exact by construction. Text is built of common words, counted by the tokenizer as a whole and corrected
until the count is right: the number of tokens of a text is not the sum of its parts'.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from appliance.bench.client import ask
from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from appliance.bench.client import Target

_COMMON = """
the of and to in is that it was for on are as with they be at one have this from or had by but what some we can
out other were all there when up use your how said an each she which do their time if will way about many then
them write would like so these her long make thing see him two has look more day could go come did number sound
no most people my over know water than call first who may down side been now find any new work part take get
place made live where after back little only round man year came show every good me give our under name very
through just form much great think say help low line before turn cause same mean differ move right boy old too
does tell set three want air well also play small end put home read hand port large spell add even land here
must big high such follow act why ask men change went light kind off need house picture try us again animal
point mother world near build self earth father head stand own page should country found answer school grow
"""

WORDS = tuple(_COMMON.split())

ROUNDS = 12
"""Corrections until a text is given up; two or three are usual."""


class Tokenizer(Protocol):
    """What counts tokens."""

    async def encode(self, text: str) -> list[int]:
        """Return the tokens of a completion's prompt, special ones included where the engine would add them."""

    async def encode_chat(self, text: str) -> list[int]:
        """Return the tokens of one user's message in the model's chat template."""


@dataclass(frozen=True)
class Served:
    """The engine's own, over /tokenize."""

    client: aiohttp.ClientSession
    target: Target
    model: str

    async def encode(self, text: str) -> list[int]:
        """Ask for a prompt's tokens."""
        return await self._ask({"prompt": text})

    async def encode_chat(self, text: str) -> list[int]:
        """Ask for a message's tokens."""
        return await self._ask({"messages": [{"role": "user", "content": text}], "add_generation_prompt": True})

    async def _ask(self, body: dict[str, Any]) -> list[int]:
        answer = await ask(self.client, self.target, "/tokenize", {"model": self.model, **body})
        try:
            return [int(token) for token in answer["tokens"]]
        except (TypeError, KeyError, ValueError):
            raise CheckError(
                f"{self.target.url}/tokenize returns no tokens; name the model's folder with --tokenizer"
            ) from None


class Local:
    """The tokenizer.json of a model's folder."""

    def __init__(self, folder: Path) -> None:
        try:
            import tokenizers
        except ImportError:
            raise CheckError("--tokenizer needs the package tokenizers, which is not installed here") from None
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigurationError(f"--tokenizer {folder}: no tokenizer.json in it; wanted the model's folder")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(file))

    async def encode(self, text: str) -> list[int]:
        """Encode a prompt."""
        return list(self._tokenizer.encode(text).ids)

    async def encode_chat(self, text: str) -> list[int]:  # noqa: ARG002 - the protocol's
        """Not here: only the engine knows its chat template."""
        raise ConfigurationError("--tokenizer counts no chat template; leave it out, and the engine is asked")


async def vocabulary(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of common words, no special one among them."""
    special = set(await tokenizer.encode(""))
    known = sorted(set(await tokenizer.encode(" ".join(WORDS))) - special)
    if not known:
        raise CheckError("the tokenizer makes no tokens of common English words; wanted the served model's tokenizer")
    return known


def token_prompts(known: list[int], length: int, count: int, seed: int) -> list[list[int]]:
    """Return `count` prompts of exactly `length` of the `known` tokens."""
    return [_draw(seed, length, index).choices(known, k=length) for index in range(count)]


async def text_prompts(tokenizer: Tokenizer, length: int, count: int, seed: int, *, chat: bool) -> list[str]:
    """Return `count` texts of exactly `length` tokens, with `chat` the template's included.

    Raises ConfigurationError where the template alone is longer, CheckError where no text of that length is found.
    """
    encode = tokenizer.encode_chat if chat else tokenizer.encode
    fillers = await _fillers(tokenizer)
    empty = len(await encode(""))
    if empty >= length:
        raise ConfigurationError(
            f"a prompt of {length} tokens cannot be made: what the template adds is {empty} tokens already"
        )
    per_word = len(await tokenizer.encode(" ".join(WORDS))) / len(WORDS)
    texts = []
    for index in range(count):
        draw = _draw(seed, length, index)
        words = draw.choices(WORDS, k=max(1, int((length - empty) / per_word)))
        texts.append(await _exact(encode, words, fillers, length, draw))
    return texts


async def _fillers(tokenizer: Tokenizer) -> list[str]:
    """Return words that add one token each."""
    base = len(await tokenizer.encode("the the"))
    lengths = {word: len(await tokenizer.encode(f"the the {word} {word}")) for word in WORDS[:24]}
    found = [word for word, length in lengths.items() if length == base + 2]
    if not found:
        raise CheckError("the tokenizer has no token for any common English word; use --prompt ids")
    return found


async def _exact(encode: Any, words: list[str], fillers: list[str], length: int, draw: random.Random) -> str:  # noqa: ANN401
    for _ in range(ROUNDS):
        text = " ".join(words)
        missing = length - len(await encode(text))
        if not missing:
            return text
        if missing > 0:
            words += draw.choices(fillers, k=missing)
        else:
            # Every word is a token at least, so this may take away too much, which fillers then make up.
            del words[missing:]
    raise CheckError(f"no text of exactly {length} tokens was found; use --prompt ids, which are exact by themselves")


def _draw(seed: int, length: int, index: int) -> random.Random:
    # With the length in it: a longer prompt must not begin as a shorter one did, which the engine has in its cache.
    return random.Random(f"{seed}/{length}/{index}")  # noqa: S311 - reproducible prompts, no secret
