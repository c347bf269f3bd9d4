"""What serves Qwen3.8-27B on SM70 inside vLLM's processes: each module registers its own classes with vLLM."""
