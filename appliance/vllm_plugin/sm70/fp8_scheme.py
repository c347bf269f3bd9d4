"""What a checkpoint's `quantization_config` says of its FP8 weights, and what of it we serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from appliance.vllm_plugin.sm70.checkpoint_layout import canonical, ignored, names_module, shards_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUPPORTED = (
    "FP8 (E4M3) weights with 128x128 block scales or one scale a row, quant_method fp8 or compressed-tensors, "
    "activations unquantised or quantised while running"
)

BLOCK = 128


class SchemeError(ValueError):
    """The checkpoint is quantised in a way that we do not serve; one line that names what we do."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one layer's weight is scaled. `scale` is the name of its scale tensor in the checkpoint."""

    kind: Literal["block", "channel"]
    scale: str


@dataclass(frozen=True, slots=True)
class Fp8Layout:
    """Which modules are FP8 and how: `targets` maps an entry (or `Linear`, all of them) to its scheme."""

    targets: Mapping[str, Scheme]
    ignore: tuple[str, ...]
    quantises_head: bool
    kv_cache: bool
    """Whether the checkpoint declares an FP8 KV cache."""

    def scheme(self, name: str, packed: Mapping[str, Sequence[str]], head: bool = False) -> Scheme | None:
        """Return the scheme of a module of vLLM; None where its weight is unquantised.

        Raises LayoutError or SchemeError, one line, where the shards of a fused layer differ.
        """
        if (head and not self.quantises_head) or ignored(name, self.ignore, packed):
            return None
        schemes = {self._of_shard(shard) for shard in shards_of(name, packed)}
        if len(schemes) > 1:
            raise SchemeError(f"the shards of {name} are quantised in different ways; one layer here wants one scheme")
        # A target may name the fused layer; asked last, because an expression for one shard may match it too.
        return schemes.pop() or self._of_shard(canonical(name)) or self.targets.get("Linear")

    def _of_shard(self, name: str) -> Scheme | None:
        named = (scheme for target, scheme in self.targets.items() if target != "Linear" and names_module(target, name))
        return next(named, None)


def read(config: Mapping[str, Any]) -> Fp8Layout:
    """Return the layout that a `quantization_config` describes. Raises SchemeError for what we do not serve."""
    method = config.get("quant_method")
    if method == "fp8":
        return _native(config)
    if method == "compressed-tensors":
        return _compressed_tensors(config)
    raise _refused(f"quant_method {method!r}")


def _native(config: Mapping[str, Any]) -> Fp8Layout:
    if config.get("activation_scheme", "dynamic") != "dynamic":
        raise _refused(f"activation_scheme {config['activation_scheme']!r}")
    form = config.get("fmt", "e4m3")
    if form not in ("e4m3", "float8_e4m3fn"):
        raise _refused(f"fmt {form!r}")
    size = config.get("weight_block_size")
    if size is not None and list(size) != [BLOCK, BLOCK]:
        raise _refused(f"weight_block_size {list(size)}")
    scheme = Scheme("channel", "weight_scale") if size is None else Scheme("block", "weight_scale_inv")
    ignore = config.get("ignored_layers") or config.get("modules_to_not_convert") or ()
    # transformers' FP8 quantiser never converts the output embedding, whether or not the list names it.
    return Fp8Layout({"Linear": scheme}, tuple(ignore), quantises_head=False, kv_cache=False)


def _compressed_tensors(config: Mapping[str, Any]) -> Fp8Layout:
    if config.get("sparsity_config") or config.get("transform_config"):
        part = "sparsity_config" if config.get("sparsity_config") else "transform_config"
        raise _refused(f"a {part}")
    targets: dict[str, Scheme] = {}
    for name, group in (config.get("config_groups") or {}).items():
        names = list(group.get("targets") or ())
        if len(names) == 1 and names[0].endswith("Attention"):
            continue
        scheme = _group(name, group)
        targets |= dict.fromkeys(names, scheme)
    if not targets:
        raise _refused("no config_groups with targets")
    declares_kv = config.get("kv_cache_scheme") is not None
    return Fp8Layout(targets, tuple(config.get("ignore") or ()), quantises_head=True, kv_cache=declares_kv)


def _group(name: str, group: Mapping[str, Any]) -> Scheme:
    weights = group.get("weights") or {}
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if bits != 8 or kind != "float" or not weights.get("symmetric", True) or weights.get("dynamic"):
        also = " (NVFP4)" if bits == 4 and kind == "float" and weights.get("group_size") == 16 else ""
        raise _refused(f"config group {name!r} with {bits}-bit {kind} {strategy} weights{also}")
    activations = group.get("input_activations")
    if activations and not activations.get("dynamic"):
        raise _refused(f"config group {name!r} with static input scales")
    if strategy == "channel":
        return Scheme("channel", "weight_scale")
    if strategy == "block" and list(weights.get("block_structure") or ()) == [BLOCK, BLOCK]:
        return Scheme("block", "weight_scale")
    size = f" {weights.get('block_structure')}" if strategy == "block" else ""
    raise _refused(f"config group {name!r} with {strategy}{size} scales")


def _refused(seen: str) -> SchemeError:
    return SchemeError(f"the checkpoint has {seen}, which this build does not serve; it serves {SUPPORTED}")
