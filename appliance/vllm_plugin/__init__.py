"""All that lives inside vLLM's processes. It comes in through vLLM's extension points; vLLM itself stays unmodified."""
