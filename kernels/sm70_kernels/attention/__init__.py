"""Attention over a paged KV cache: what it computes, and its operators."""
