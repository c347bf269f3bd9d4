"""What a checkpoint folder holds: its quantisation, as its own configuration says, and whether it is all there.

Reads JSON and the headers of safetensors files, never a weight. Standard library only.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from appliance.errors import CheckError, ConfigurationError
from appliance.models.hub_cache import link_fault, refuse_hub_cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Kind = Literal["fp8_block", "fp8_channel", "nvfp4", "mixed", "awq", "gptq", "other", "unquantized"]
"""The same words as `appliance.models.source.ModelSource.kind`."""

_LEFTOVERS = ("*.aria2", "*.incomplete", "*.part", ".cache/huggingface/download/**/*.incomplete")
"""What aria2, huggingface_hub and wget-like tools leave beside or instead of a file that is not whole."""

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")
_MOST_SHARDS = 1000

_LARGEST_HEADER = 100_000_000
"""Bytes; the safetensors library refuses larger ones."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint. `bytes` are those of its weight files, `architecture` the first that config.json names.

    `scheme` tells the quantisation in the words of its configuration, for a person.
    """

    folder: str
    kind: Kind
    scheme: str
    architecture: str
    bytes: int
    files: tuple[str, ...]


def inspect(folder: Path) -> Checkpoint:
    """Return what `folder` holds.

    Raises ConfigurationError where there is no checkpoint at all, CheckError where it is broken or half downloaded,
    naming the files.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ConfigurationError(f"{folder}: {what}; wanted the folder of a checkpoint, with its config.json")
    refuse_hub_cache(folder)
    config = _json(folder / "config.json", required=True)
    files = _weight_files(folder)
    _refuse_leftovers(folder)
    sizes = [_size(folder / name) for name in files]
    kind, scheme = _quantisation(folder, config)
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type", "")
    return Checkpoint(str(folder), kind, scheme, str(named), sum(sizes), files)


def _json(path: Path, *, required: bool = False) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise ConfigurationError(
                f"{path.parent}: has no {path.name}; wanted the folder of a checkpoint (a Hugging Face download)"
            ) from None
        return {}
    except OSError as error:
        raise CheckError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        if is_pointer(path):
            raise CheckError(pointer_message(path)) from error
        raise CheckError(f"{path}: not JSON; download it again") from error
    if not isinstance(record, dict):
        raise CheckError(f"{path}: holds no JSON object; download it again")
    return record


def _weight_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the safetensors files that make up the checkpoint, each of them there."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = _json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckError(f"{index}: has no weight_map; download it again")
        names = {str(name) for name in weight_map.values()}
    else:
        names = {path.name for path in folder.glob("*.safetensors")}
        if not names:
            raise CheckError(f"{folder}: holds no *.safetensors file; wanted a checkpoint in safetensors")
        names |= {shard for name in names for shard in _all_shards(name)}
    missing = sorted(name for name in names if not (folder / name).exists())
    if missing:
        if len(missing) == len(names) and (fault := link_fault(folder / missing[0])):
            raise CheckError(fault)
        raise CheckError(
            f"{folder}: half downloaded, {len(missing)} of {len(names)} weight files are missing ({_some(missing)}); "
            "finish the download"
        )
    return tuple(sorted(names))


def _all_shards(name: str) -> Iterator[str]:
    """Yield the names of all shards that `model-00001-of-00004.safetensors` belongs to; none for another name."""
    found = _SHARD.fullmatch(name)
    if found and int(found["count"]) <= _MOST_SHARDS:
        for number in range(1, int(found["count"]) + 1):
            yield f"{found['stem']}-{number:0{len(found['number'])}d}-of-{found['count']}.safetensors"


def _refuse_leftovers(folder: Path) -> None:
    left = sorted(str(path.relative_to(folder)) for pattern in _LEFTOVERS for path in folder.glob(pattern))
    if left:
        raise CheckError(f"{folder}: a download is not finished ({_some(left)}); finish it, or delete what it left")


def _size(path: Path) -> int:
    """Return the size of a safetensors file, proven against its header (8 bytes of length, JSON, tensors)."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            opening = file.read(8)
            length = struct.unpack("<Q", opening)[0] if len(opening) == 8 else 0
            # A pointer's text read as a length is a huge number, and must not be read.
            header = file.read(length) if 0 < length <= min(_LARGEST_HEADER, size) else b""
    except OSError as error:
        raise CheckError(f"{path}: cannot be read ({error.strerror})") from error
    if size == 0:
        raise CheckError(f"{path}: is empty; download it again")
    if is_pointer(path):
        raise CheckError(pointer_message(path))
    try:
        tensors = json.loads(header)
        end = max((entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"), default=0)
        wanted = 8 + length + int(end)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise CheckError(f"{path}: is cut short or no safetensors file ({size:,} bytes); download it again") from None
    if size != wanted:
        raise CheckError(f"{path}: has {size:,} bytes and its header says {wanted:,}; download it again")
    return size


def is_pointer(path: Path) -> bool:
    """Whether `path` holds a Git LFS pointer in the place of the file."""
    try:
        with path.open("rb") as file:
            return file.read(24).startswith(b"version https://git-lfs")
    except OSError:
        return False


def pointer_message(path: Path) -> str:
    """Return the sentence for a Git LFS pointer."""
    return f"{path}: is a Git LFS pointer and not the file itself; run `git lfs pull` there, or download it"


def _quantisation(folder: Path, config: dict[str, Any]) -> tuple[Kind, str]:
    text = config.get("text_config")
    own = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if isinstance(own, dict):
        return _kind(own)
    quantization = _json(folder / "hf_quant_config.json").get("quantization")
    if isinstance(quantization, dict):
        return _modelopt(str(quantization.get("quant_algo")))
    return "unquantized", "no quantization_config"


def _kind(own: dict[str, Any]) -> tuple[Kind, str]:
    method = str(own.get("quant_method", "")).lower()
    if method == "fp8":
        block = own.get("weight_block_size")
        return ("fp8_block", f"fp8, weight blocks of {block}") if block else ("other", "fp8, one scale per tensor")
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(own)
    if method.startswith("modelopt"):
        return _modelopt(str(own.get("quant_algo") or method.removeprefix("modelopt").strip("_-")))
    if method.startswith("awq"):
        return "awq", f"{method}, {own.get('bits', own.get('w_bit', 4))} bits"
    if method.startswith("gptq"):
        return "gptq", f"{method}, {own.get('bits', 4)} bits"
    return "other", method or "a quantization_config without quant_method"


def _modelopt(algorithm: str) -> tuple[Kind, str]:
    scheme = f"modelopt {algorithm}"
    if algorithm.lower().startswith("mixed"):
        return "mixed", scheme
    return ("nvfp4" if algorithm.upper() in ("NVFP4", "FP4", "NVFP4_AWQ") else "other"), scheme


def _compressed_tensors(own: dict[str, Any]) -> tuple[Kind, str]:
    groups = own.get("config_groups")
    found = {
        _group(group, str(own.get("format", "")))
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict)
    }
    scheme = "compressed-tensors " + (" and ".join(sorted({scheme for _, scheme in found})) or "without groups")
    kinds = {kind for kind, _ in found}
    if len(kinds) == 1:
        return kinds.pop(), scheme
    return ("mixed" if kinds else "other"), scheme


def _group(group: dict[str, Any], outer: str) -> tuple[Kind, str]:
    own = str(group.get("format") or outer)
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    bits, number, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if own == "nvfp4-pack-quantized":
        return "nvfp4", f"{own}, groups of {weights.get('group_size', 16)}"
    scheme = f"{own}, {bits}-bit {number} per {strategy}"
    if number == "float" and bits == 8 and strategy in ("channel", "block"):
        return ("fp8_channel" if strategy == "channel" else "fp8_block"), scheme
    return "other", scheme


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
