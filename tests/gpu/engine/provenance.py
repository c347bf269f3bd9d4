"""What a record of an engine's run vouches for: the plugin's sources and the kernels that served."""

from __future__ import annotations


def hashes() -> dict[str, str]:
    """Return SHA-256 of the plugin's sources, and of all kernels but those that await a GPU."""
    from appliance.vllm_plugin.register import source_hash
    from sm70_kernels import registry

    return {"plugin": source_hash(), "kernels": registry.serving_hash()}
