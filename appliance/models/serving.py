"""Whether a checkpoint holds what serving needs beside weights: tokenizer, chat template, generation config and so on.

Reads small files only. Standard library only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from appliance.errors import CheckError
from appliance.models.checkpoint import is_pointer, pointer_message
from appliance.models.hub_cache import link_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Need = Literal["tokenizer", "chat_template", "generation_config", "processor"]

_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",), ("tekken.json",))
"""The sets of files of which one is enough for a tokenizer; `tokenizer_config.json` names its special tokens."""

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_OPTIONAL = ("video_preprocessor_config.json", "special_tokens_map.json", "added_tokens.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")

_EDGE = 64
"""Bytes looked at on each end of a JSON file that is too large to be read whole in a plan's 0.4 s."""

_READ_WHOLE = 1 << 20
"""Bytes; a larger JSON file is a vocabulary."""


def needs(arguments: Mapping[str, Any]) -> tuple[Need, ...]:
    """Return what a start with these arguments of vLLM, by their names, wants of the model's folder.

    An argument that brings a thing from elsewhere, or switches it off, takes it off the list.
    """
    wanted: list[Need] = []
    model = arguments.get("model")
    if not arguments.get("skip_tokenizer_init"):
        own = arguments.get("tokenizer") in (None, model)
        if own:
            wanted.append("tokenizer")
        if own and not arguments.get("chat_template"):
            wanted.append("chat_template")
    if arguments.get("generation_config") in (None, "auto", model):
        wanted.append("generation_config")
    if not arguments.get("language_model_only") and not _without_media(arguments.get("limit_mm_per_prompt")):
        wanted.append("processor")
    return tuple(wanted)


def check_tokenizer_elsewhere(arguments: Mapping[str, Any]) -> None:
    """Hold the folder that the argument `tokenizer` names, where it is one here. Raises CheckError."""
    named = arguments.get("tokenizer")
    if isinstance(named, str) and named != arguments.get("model") and Path(named).is_dir():
        check(Path(named), ("tokenizer",) if arguments.get("chat_template") else ("tokenizer", "chat_template"))


def check(folder: Path, wanted: Iterable[Need]) -> None:
    """Hold `folder` against `wanted`. Raises CheckError, one line, for the first thing that is missing or damaged.

    A processor is wanted only of a model whose `config.json` has a `vision_config`.
    """
    wanted = set(wanted)
    if "tokenizer" in wanted:
        _check_tokenizer(folder)
    if "chat_template" in wanted:
        _check_template(folder)
    if "generation_config" in wanted:
        _one_of(
            folder,
            ("generation_config.json",),
            "generation config, which says at which tokens an answer ends",
            "or start with `-- --generation-config vllm`",
        )
    if "processor" in wanted and isinstance(_object(folder / "config.json").get("vision_config"), dict):
        _one_of(
            folder,
            _PROCESSORS,
            "image processor, and vision is on",
            "or serve text alone with `-- --language-model-only`",
        )
    for name in _OPTIONAL if "tokenizer" in wanted or "processor" in wanted else ():
        if _exists(folder / name):
            _sound(folder / name)


def _check_tokenizer(folder: Path) -> None:
    names = next((names for names in _TOKENIZERS if all(_exists(folder / name) for name in names)), None)
    if names is None:
        raise CheckError(
            f"{folder}: has no tokenizer (tokenizer.json, or vocab.json with merges.txt); copy it from the "
            "checkpoint's repository, or name its folder with `-- --tokenizer DIR`"
        )
    for name in names:
        _sound(folder / name)
    _one_of(
        folder,
        ("tokenizer_config.json",),
        "tokenizer configuration, which names the special tokens",
        "or name another tokenizer's folder with `-- --tokenizer DIR`",
    )


def _check_template(folder: Path) -> None:
    for name in _TEMPLATES:
        if _exists(folder / name):
            _sound(folder / name)
            return
    if not _object(folder / "tokenizer_config.json").get("chat_template"):
        raise CheckError(
            f"{folder}: has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json), and "
            "every chat request would fail; copy it from the checkpoint's repository, or give one with "
            "`-- --chat-template FILE`"
        )


def _one_of(folder: Path, names: tuple[str, ...], what: str, otherwise: str) -> None:
    there = [name for name in names if _exists(folder / name)]
    if not there:
        raise CheckError(
            f"{folder}: has no {' or '.join(names)}: no {what}; copy it from the checkpoint's repository, {otherwise}"
        )
    for name in there:
        _sound(folder / name)


def _exists(path: Path) -> bool:
    """Whether the name is there. Raises CheckError for a link into a Hugging Face cache that leads nowhere."""
    if fault := link_fault(path):
        raise CheckError(fault)
    return path.exists()


def _sound(path: Path) -> None:
    """Raise CheckError for a file that is empty, cut short, a Git LFS pointer or, by its name, no JSON."""
    if is_pointer(path):
        raise CheckError(pointer_message(path))
    try:
        size = path.stat().st_size
        if size == 0:
            raise CheckError(f"{path}: is empty; download it again")
        if path.suffix != ".json":
            return
        if size <= _READ_WHOLE:
            _object(path)
            return
        with path.open("rb") as file:
            opening = file.read(_EDGE).lstrip()
            file.seek(-_EDGE, 2)
            ending = file.read().rstrip()
    except OSError as error:
        raise CheckError(f"{path}: cannot be read ({error.strerror})") from error
    if not (opening.startswith(b"{") and ending.endswith(b"}")):
        raise CheckError(f"{path}: is cut short or not JSON ({size:,} bytes); download it again")


def _object(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise CheckError(f"{path}: not JSON; download it again") from error
    if not isinstance(record, dict):
        raise CheckError(f"{path}: holds no JSON object; download it again")
    return record


def _without_media(limits: object) -> bool:
    """Whether `limit_mm_per_prompt` lets in neither an image nor a video."""
    if not isinstance(limits, dict):
        return False
    counts = (limits.get(kind, 1) for kind in ("image", "video"))
    return all((count.get("count", 1) if isinstance(count, dict) else count) == 0 for count in counts)
