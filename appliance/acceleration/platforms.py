"""The names of our platforms in vLLM, as the setting `vllm_platform` takes them and the engine reads them."""

from __future__ import annotations

VARIABLE = "APPLIANCE_VLLM_PLATFORM"
"""The setting's name in the engine's environment."""

AUTO = "auto"
"""SM70 on a GPU of capability 7.0, vLLM's own choice elsewhere."""

SM70 = "sm70"
REFERENCE = "sm70-reference"

NAMES = (AUTO, SM70, REFERENCE)

VOLTA = (7, 0)
