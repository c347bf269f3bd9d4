"""Registers our quantisation configs, backends, layers and loaders with vLLM in this process."""

from __future__ import annotations

from appliance.vllm_plugin.sm70.platform_choice import PlatformError, chosen


def activate_if_chosen() -> bool:
    """Register everything where our platform is in force; returns whether it is. May be called again.

    Raises PlatformError, one line, where this machine needs our platform and vLLM took another: it swallows whatever
    a platform plugin raises.
    """
    path = chosen()
    if path is None:
        return False
    from vllm.platforms import current_platform

    kind = type(current_platform)
    if f"{kind.__module__}.{kind.__qualname__}" != path:
        raise PlatformError(
            f"vLLM took the platform {kind.__qualname__}, but this machine needs {path.rpartition('.')[2]}: "
            "look for the platform plugin's error above, and for appliance_sm70 in VLLM_PLUGINS"
        )
    activate()
    return True


def activate() -> None:
    """Register everything in this process; idempotent."""
    from appliance.vllm_plugin.sm70 import (
        activation,
        attention,
        checkpoint_loader,
        fp8_config,
        gdn,
        gdn_metadata,
        lm_head,
        norms,
    )

    for module in (fp8_config, lm_head, checkpoint_loader, norms, activation, attention, gdn_metadata, gdn):
        module.register()
