"""Which modules of a checkpoint are quantised, by its ignore list, and whether its tensors agree. Pure.

Names are compared in one canonical form: that of the checkpoint without the wrapper's prefixes, such as
`layers.0.mlp.gate_proj`, `lm_head`, `visual.blocks.0.attn.qkv`, `mtp.fc`. Checkpoints and vLLM spell the wrapper in
different ways, and vLLM's own mapper leaves names without a dot as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WRAPPERS = ("model.", "language_model.")
ROOTS = ("layers", "embed_tokens", "norm", "lm_head", "visual", "mtp")
"""First parts of canonical names. An entry that starts with none of them may be the end of a name."""

SPELLINGS = ("", "model.", "language_model.", "model.language_model.", "language_model.model.")
"""Prefixes under which a regular expression of an ignore list may expect a name."""

SCALES = ("weight_scale", "weight_scale_inv", "input_scale", "weight_global_scale", "input_global_scale")
KV_SCALES = ("k_scale", "v_scale", "q_scale", "kv_scale")


class LayoutError(ValueError):
    """The checkpoint's tensors and its quantisation config disagree; one line."""


def canonical(name: str) -> str:
    """Return a module's or tensor's name without the prefixes of a wrapper."""
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name


def names_module(entry: str, name: str) -> bool:
    """Say whether an entry of an ignore or target list names the module with canonical name `name`.

    An entry names a module by its whole name, by that of a module above it, by the end of its name (unless the entry
    starts with a root), or by a regular expression after `re:`, matched from the start as compressed-tensors does.
    """
    if entry.startswith("re:"):
        return any(re.match(entry[3:], spelling + name) for spelling in SPELLINGS)
    wanted = canonical(entry)
    if name == wanted or name.startswith(wanted + "."):
        return True
    return wanted.partition(".")[0] not in ROOTS and name.endswith("." + wanted)


def shards_of(name: str, packed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the canonical checkpoint names of a module of vLLM: several where vLLM fuses them."""
    name = canonical(name)
    parent, _, leaf = name.rpartition(".")
    return [f"{parent}.{shard}" if parent else shard for shard in packed.get(leaf, [leaf])]


def ignored(name: str, entries: Iterable[str], packed: Mapping[str, Sequence[str]]) -> bool:
    """Say whether a module of vLLM stays unquantised. Raises LayoutError where its shards differ."""
    entries = list(entries)
    shards = shards_of(name, packed)
    kept = [shard for shard in shards if any(names_module(entry, shard) for entry in entries)]
    if kept and len(kept) != len(shards):
        other = next(shard for shard in shards if shard not in kept)
        raise LayoutError(
            f"the checkpoint's ignore list names {kept[0]} but not {other}, which are one layer here: "
            "both must be quantised, or neither"
        )
    # An entry may name the fused layer; asked last, because an expression for one shard may match it too.
    return bool(kept) or any(names_module(entry, canonical(name)) for entry in entries)


@dataclass(frozen=True, slots=True)
class Absent:
    """Parts of a checkpoint that a load does not build, by canonical root, and why."""

    reasons: Mapping[str, str]

    def reason(self, name: str) -> str | None:
        """Return why the canonical name `name` has no module in this load; None where it should have one."""
        return self.reasons.get(name.partition(".")[0])

    def reason_of_entry(self, entry: str) -> str | None:
        """Return why an ignore entry may name no module: it, or its regular expression, speaks of an absent root."""
        if not entry.startswith("re:"):
            return self.reason(canonical(entry))
        plain = entry[3:].replace("\\", "")
        return next((reason for root, reason in self.reasons.items() if re.search(rf"\b{root}\b", plain)), None)


def unmatched(entries: Iterable[str], modules: Iterable[str], absent: Absent) -> dict[str, str]:
    """Return the entries that name no module because the load does not build it, with the reason.

    `modules` are canonical names of all modules, those of shards included. Raises LayoutError for any other entry.
    """
    names = list(modules)
    known = set(names)
    excused = {}
    for entry in entries:
        if canonical(entry) in known or any(names_module(entry, name) for name in names):
            continue
        reason = absent.reason_of_entry(entry)
        if reason is None:
            raise LayoutError(
                f"the checkpoint's ignore list names {entry!r}, which is no module of this model: "
                "correct quantization_config in its config.json, or take the checkpoint's published revision"
            )
        excused[entry] = reason
    return excused


@dataclass(slots=True)
class TensorCheck:
    """Follows the tensors of one load. `quantised` maps canonical module names to the name of their scale tensor.

    `expected` are the canonical names of all tensors that the model needs from the checkpoint.
    """

    quantised: Mapping[str, str]
    expected: frozenset[str]
    absent: Absent
    optional: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)

    def see(self, tensor: str, dtype: str) -> None:
        """Take note of a tensor (`dtype` as torch names it, without `torch.`). Raises LayoutError where it is wrong."""
        name = canonical(tensor)
        if self.absent.reason(name) is not None:
            return
        module, _, leaf = name.rpartition(".")
        self.seen.add(name)
        if leaf in KV_SCALES or name in self.optional or leaf == "inv_freq":
            return
        if leaf in SCALES or leaf == "weight_packed":
            self._see_scale(tensor, module, leaf)
        elif dtype.startswith("float8") or dtype == "uint8":
            if module not in self.quantised or leaf != "weight":
                raise LayoutError(
                    f"the tensor {tensor} is {dtype}, but its parameter is not quantised: "
                    f"the checkpoint's quantization_config excludes {module or name}"
                )
        elif module in self.quantised and leaf == "weight":
            raise LayoutError(
                f"the tensor {tensor} is {dtype}, but its parameter is FP8: "
                f"the checkpoint's ignore list should name {module}"
            )
        if name not in self.expected:
            raise LayoutError(f"the tensor {tensor} ({dtype}) belongs to no parameter of this model")

    def _see_scale(self, tensor: str, module: str, leaf: str) -> None:
        wanted = self.quantised.get(module)
        if wanted is None:
            raise LayoutError(
                f"the tensor {tensor} scales a weight, but {module} is not quantised: "
                "the checkpoint's quantization_config excludes it"
            )
        if leaf != wanted:
            raise LayoutError(f"the tensor {tensor} is not what scales {module}: its scheme wants {module}.{wanted}")

    def finish(self) -> None:
        """Raise LayoutError when a tensor that the model needs was not in the checkpoint."""
        missing = sorted(self.expected - self.seen - self.optional)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise LayoutError(f"the checkpoint has no tensor {missing[0]}{more}, which the model needs")
