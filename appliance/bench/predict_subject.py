"""What of a profile decides how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.bench import predict_data
from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    from appliance.bench.predict_data import Shapes
    from appliance.profiles.schema import DraftGeometry, Figure, Geometry, Profile

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
    model: Shapes
    draft: DraftGeometry | None
    draft_weights: Figure | None

    @property
    def layers(self) -> int:
        """All of the target's."""
        return self.geometry.layers_full_attention + self.geometry.layers_linear_attention


def subject(profile: Profile) -> Subject:
    """Return it. Raises ConfigurationError for a profile that nothing is known of."""
    model, arguments = predict_data.load().model, profile.arguments
    if profile.engine != "v100" or model.architecture not in profile.architectures:
        raise ConfigurationError(
            f"{profile.name} serves {' or '.join(profile.architectures) or 'any model'} on {profile.engine}; "
            f"predictions are of {model.architecture} on V100s; name such a profile with --profile"
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
        model=model,
        draft=profile.memory.draft,
        draft_weights=profile.memory.draft_weights,
    )


def _number(profile: Profile, name: str) -> int:
    value: Any = profile.arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{profile.name}: arguments.{name} is {value!r}; a prediction wants it as a number")
    return value
