"""The V100 appliance's control plane. Nothing outside appliance.vllm_plugin imports torch or vllm."""

__version__ = "0.1.0"
