"""What the key needs to know of this machine, this image and the checkpoint. Reads; imports neither torch nor vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.cache.key import Facts


def gather(plan: Mapping[str, Any], environ: Mapping[str, str]) -> Facts:
    """Return the facts for the start that `plan` (plan.json's record) describes.

    Raises CheckError when the model's folder holds no configuration, as before it was fetched.
    """
    raise NotImplementedError
