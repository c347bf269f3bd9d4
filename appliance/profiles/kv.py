"""How vLLM 0.19.1 lays KV pages and recurrent states of a hybrid model out in blocks. Formula, nothing measured.

Layers of one kind form groups of equal size. A block is one page of every layer of a group, and every group takes its
blocks from one pool, so a page has the same bytes everywhere: the page of an attention layer is raised, even over a
user's block_size, until one recurrent state fits in it (`HybridAttentionMambaModelConfig`, kernel alignment 16).

Sources: vLLM 0.19.1 `models/config.py`, `v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`. Stock 0.19.1 cannot
place a draft beside the hybrid target without padding; here the group is the smallest common divisor of the layer
counts that holds the draft, and the draft keeps its window and two prefill budgets (two batches in flight). Those two
rules give the published 521 blocks of 8 MiB and 321 blocks for a request of 262,144 tokens, hence 425,473 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from appliance.profiles.schema import DraftGeometry, Geometry

MambaMode = Literal["none", "align"]

_ALIGNMENT = 16
"""Tokens; the attention kernels' granularity within a page."""


@dataclass(frozen=True)
class KvLayout:
    """Pages of one rank. `page_bytes` is one page of one layer, K and V; a block is that times `layers_per_group`.

    `state_blocks` are the blocks that a request holds in each linear group, `draft_blocks` in each draft group.
    """

    page_tokens: int
    page_bytes: int
    layers_per_group: int
    attention_groups: int
    linear_groups: int
    draft_groups: int
    state_blocks: int
    draft_blocks: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool, on one rank."""
        return self.page_bytes * self.layers_per_group

    def blocks(self, tokens: int) -> int:
        """Blocks that one request of `tokens` tokens holds in all groups together."""
        return (
            self.attention_groups * _divide_up(tokens, self.page_tokens)
            + self.linear_groups * self.state_blocks
            + self.draft_groups * self.draft_blocks
        )


def state_bytes(
    geometry: Geometry, *, tensor_parallel_size: int, num_speculative_tokens: int, ssm_bytes: int, conv_bytes: int = 2
) -> int:
    """Bytes of one layer's recurrent state and convolution tail on one rank; 0 without linear attention.

    Each speculative token adds one column to the convolution tail.
    """
    if not geometry.layers_linear_attention:
        return 0
    size = geometry.linear_head_dim
    channels = (2 * geometry.linear_key_heads + geometry.linear_value_heads) * size // tensor_parallel_size
    columns = geometry.linear_conv_width - 1 + num_speculative_tokens
    state = geometry.linear_value_heads // tensor_parallel_size * size * size * ssm_bytes
    return state + channels * columns * conv_bytes


def token_bytes(kv_heads: int, head_dim: int, kv_bytes: int, tensor_parallel_size: int) -> int:
    """Bytes of K and V of one token in one layer on one rank; a KV head is repeated where ranks outnumber them."""
    return 2 * max(1, kv_heads // tensor_parallel_size) * head_dim * kv_bytes


def page_tokens(state: int, per_token: int, block_size: int | None) -> int:
    """Tokens of a page: enough for one recurrent state of `state` bytes, rounded up to 16, and at least `block_size`.

    `per_token` is `token_bytes`. vLLM's own default block size on CUDA is 16.
    """
    smallest = _ALIGNMENT * _divide_up(state, _ALIGNMENT * per_token)
    return max(block_size or _ALIGNMENT, smallest)


def layout(
    geometry: Geometry,
    draft: DraftGeometry | None,
    *,
    tensor_parallel_size: int,
    kv_bytes: int,
    ssm_bytes: int,
    num_speculative_tokens: int,
    block_size: int | None,
    mamba_mode: MambaMode,
    budget: int,
    max_model_len: int,
) -> KvLayout:
    """Return the layout. `budget` is max_num_batched_tokens; `kv_bytes` and `ssm_bytes` are bytes per element."""
    per_token = token_bytes(geometry.kv_heads, geometry.head_dim, kv_bytes, tensor_parallel_size)
    state = state_bytes(
        geometry,
        tensor_parallel_size=tensor_parallel_size,
        num_speculative_tokens=num_speculative_tokens,
        ssm_bytes=ssm_bytes,
    )
    page = page_tokens(state, per_token, block_size)
    full, linear = geometry.layers_full_attention, geometry.layers_linear_attention
    per_group = _layers_per_group(full, linear, draft.layers if draft else 0)
    draft_blocks = 0
    if draft:
        held = min(draft.window - 1 + 2 * budget, max_model_len)
        draft_token = token_bytes(draft.kv_heads, draft.head_dim, draft.kv_bytes, tensor_parallel_size)
        # One more, because a window need not begin where a page begins.
        draft_blocks = _divide_up(held, max(1, page * per_token // draft_token)) + 1
    return KvLayout(
        page_tokens=page,
        page_bytes=page * per_token,
        layers_per_group=per_group,
        attention_groups=_divide_up(full, per_group),
        linear_groups=_divide_up(linear, per_group),
        draft_groups=_divide_up(draft.layers, per_group) if draft else 0,
        # Align mode keeps the running state and the one saved at the last page's end.
        state_blocks=(2 if mamba_mode == "align" else 1) + num_speculative_tokens,
        draft_blocks=draft_blocks,
    )


def _layers_per_group(full: int, linear: int, draft: int) -> int:
    common = gcd(full, linear)
    if not draft:
        return min(full, linear) if linear else full
    return next((size for size in range(draft, common) if common % size == 0), common)


def _divide_up(amount: int, size: int) -> int:
    return -(-amount // size)
