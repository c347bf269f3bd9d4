"""What of a profile decides how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.bench import predict_data
from appliance.errors import ConfigurationError
from appliance.profiles.kv import state_bytes, token_bytes
from sm70_kernels import qwen38
from sm70_kernels.predict.parts import Draft, Workload

if TYPE_CHECKING:
    from appliance.profiles.schema import DraftGeometry, Figure, Geometry, Profile

GIB = 2**30

FAMILIES = {"fp8_block": ("dense", "norm", "head"), "nvfp4": ("norm", "lm_head")}
"""Which parts the kernels' model tells, by the kind of the target's weights."""


@dataclass(frozen=True)
class Subject:
    """The profile's share of it. `kv_bytes` are of an element.

    `drafted` tokens, which `method` proposes, are checked beside each new one.
    """

    name: str
    kind: str
    ranks: int
    kv_bytes: int
    budget: int
    longest: int
    most_requests: int
    method: str | None
    drafted: int
    geometry: Geometry
    draft: DraftGeometry | None
    draft_weights: Figure | None


def subject(profile: Profile) -> Subject:
    """Return it. Raises ConfigurationError for a profile that nothing is known of."""
    arguments = profile.arguments
    if profile.engine != "v100" or qwen38.ARCHITECTURE not in profile.architectures:
        raise ConfigurationError(
            f"{profile.name} serves {' or '.join(profile.architectures) or 'any model'} on {profile.engine}; "
            f"predictions are of {qwen38.ARCHITECTURE} on V100s; name such a profile with --profile"
        )
    if profile.model.kind not in FAMILIES:
        raise ConfigurationError(
            f"{profile.name} has weights of kind {profile.model.kind}; predictions know {' and '.join(FAMILIES)}"
        )
    cache = str(arguments.get("kv_cache_dtype", "auto"))
    return Subject(
        name=profile.name,
        kind=profile.model.kind,
        ranks=_number(profile, "tensor_parallel_size"),
        kv_bytes=1 if cache.startswith("fp8") else 2,
        budget=_number(profile, "max_num_batched_tokens"),
        longest=_number(profile, "max_model_len"),
        most_requests=_number(profile, "max_num_seqs"),
        method=profile.draft.method if profile.draft else None,
        drafted=profile.draft.num_speculative_tokens if profile.draft else 0,
        geometry=profile.memory.geometry,
        draft=profile.memory.draft,
        draft_weights=profile.memory.draft_weights,
    )


def workload(about: Subject) -> Workload:
    """Return what of it the predicting model wants."""
    data, geometry = predict_data.load(), about.geometry
    return Workload(
        ranks=about.ranks,
        token_bytes=token_bytes(geometry.kv_heads, geometry.head_dim, about.kv_bytes, about.ranks),
        state_bytes=state_bytes(
            geometry, tensor_parallel_size=about.ranks, num_speculative_tokens=0, ssm_bytes=geometry.ssm_state_bytes
        ),
        weight_bytes=data.nvfp4_weight.value if about.kind == "nvfp4" else None,
        draft=_draft(about),
        peer_bandwidth=data.peer_bandwidth.value,
        collective_latency=data.collective_latency.value,
    )


def _draft(about: Subject) -> Draft | None:
    geometry, weights = about.draft, about.draft_weights
    if not about.drafted or geometry is None or weights is None:
        return None
    return Draft(
        layers=geometry.layers,
        window=geometry.window,
        token_bytes=token_bytes(geometry.kv_heads, geometry.head_dim, geometry.kv_bytes, about.ranks),
        weight_bytes=weights.value * GIB - predict_data.load().draft_gathered.value,
    )


def _number(profile: Profile, name: str) -> int:
    value: Any = profile.arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{profile.name}: arguments.{name} is {value!r}; a prediction wants it as a number")
    return value
