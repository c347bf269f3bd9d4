"""The schema of config/profiles/*.yaml. Unknown keys are refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from appliance.models.source import ModelSource, Strict

Provenance = Literal["measured", "published", "predicted", "derived", "calibrated", "chosen"]
"""measured: by us, on the hardware that the profile is for; published: by others, with its contract; predicted: by the
committed model; derived: arithmetic on the checkpoint's shapes; calibrated: fitted so that a published total comes
out, its source names which; chosen: a decision of ours."""


class Figure(Strict):
    """A number that somebody may rely on, with where it comes from."""

    value: float
    unit: str
    provenance: Provenance
    source: str


class Needs(Strict):
    """What the machine must have. `portable` profiles need no GPU at all (gpus 0)."""

    gpus: int = Field(ge=0)
    capability: tuple[int, int] | None = None
    links: Literal["none", "peer", "nvlink"] = "none"
    """`peer`: every pair of the chosen GPUs can read each other; `nvlink`: over NVLink."""
    driver_min: int | None = None
    driver_max: int | None = None
    shm_bytes: int = 0
    disk_bytes: int = 0


class Geometry(Strict):
    """Shapes that the memory plan needs, of the whole model (source: the checkpoint's config.json)."""

    layers_full_attention: int
    layers_linear_attention: int = 0
    kv_heads: int
    head_dim: int
    linear_value_heads: int = 0
    linear_key_heads: int = 0
    linear_head_dim: int = 0
    linear_conv_width: int = 0
    """Taps of the short convolution (linear_conv_kernel_dim)."""
    ssm_state_bytes: int = 4
    """Bytes of one recurrent state element (mamba_ssm_dtype)."""


class DraftGeometry(Strict):
    """Shapes of the draft that the memory plan needs (source: the draft's config.json)."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int
    """Sliding window in tokens; KV beyond it is freed."""
    kv_bytes: int = 2


class MemoryNeeds(Strict):
    """Per-rank memory, besides KV pages, at this profile's tensor parallel size."""

    geometry: Geometry
    draft: DraftGeometry | None = None
    weights: Figure
    draft_weights: Figure | None = None
    workspaces: Figure
    """Permanent buffers besides weights, whatever the prefill budget is. The prefix bridge is not among them."""
    activations: Figure | None = None
    """Peak per token of the prefill budget (max_num_batched_tokens)."""
    prefix_bridge: bool = False
    """Whether 8-bit KV is expanded for prefill into one FP16 workspace of max_model_len tokens."""
    graphs: Figure
    """CUDA context, captured graphs and allocator slack: what lies outside the memory share. 0 on the CPU."""
    headroom: Figure
    guarantee_requests: int = Field(ge=1)
    guarantee_tokens: int = Field(ge=1)
    """The profile fits only where this many requests of this many tokens each can be resident at once."""


class Draft(Strict):
    """The speculative draft: where it comes from and the arguments of vLLM's --speculative-config."""

    source: ModelSource
    method: str
    num_speculative_tokens: int = Field(ge=1)
    options: dict[str, Any] = Field(default_factory=dict)


class Health(Strict):
    """Budgets in seconds. `start` bounds the whole start; `progress` bounds a start without any progress."""

    start: int = Field(gt=0)
    progress: int = Field(gt=0)
    stall_grace: int = Field(gt=0)
    drain: int = Field(gt=0)


class Profile(Strict):
    """One way of serving one model on one kind of machine."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    title: str
    engine: Literal["v100", "portable"]
    rank: int
    """Order of preference among profiles that fit; lower comes first."""
    model: ModelSource
    served_model_name: str
    architectures: tuple[str, ...] = ()
    """What the checkpoint's config.json may name, since the memory plan holds for these shapes only. Empty: any."""
    draft: Draft | None = None
    needs: Needs
    memory: MemoryNeeds
    arguments: dict[str, Any]
    """vLLM arguments by their names with underscores, checked against config/vllm/arguments-0.19.1.json."""
    environment: dict[str, str] = Field(default_factory=dict)
    switches: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What only our plugin knows; handed to it under `sm70` in --additional-config."""
    sampling: dict[str, float | int] = Field(default_factory=dict)
    expected_acceleration: tuple[str, ...] = ()
    health: Health
    figures: dict[str, Figure] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
