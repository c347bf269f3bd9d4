"""A gated delta net's weights and caches for the tests, and what it computes, token by token in float64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Sizes:
    """Heads of keys and values and their elements, taps, slots, columns of conv state and types."""

    key_heads: int = 2
    value_heads: int = 6
    key_head: int = 16
    value_head: int = 8
    width: int = 4
    slots: int = 7
    rows: int = 1
    dtype: torch.dtype = torch.float16
    state_dtype: torch.dtype = torch.float32
    decay: float = 0.0
    """Added to A_log: far below 0, the state is kept; far above, it is forgotten."""

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_head + self.value_heads * self.value_head


@dataclass
class GdnLayer:
    """Caches lie as vLLM hands them: slots further apart than they are long, conv state transposed."""

    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0

    def __post_init__(self) -> None:
        sizes, self.generator = self.sizes, torch.Generator().manual_seed(self.seed)
        self.conv_weight = self.normal(sizes.channels, sizes.width)
        self.a_log = self.normal(sizes.value_heads, dtype=torch.float32) + sizes.decay
        self.dt_bias = self.normal(sizes.value_heads)
        columns = sizes.width + sizes.rows - 2
        self.conv_pool = self.normal(sizes.slots, columns + 2, sizes.channels)
        self.conv_state = self.conv_pool[:, 1 : columns + 1].transpose(-1, -2)
        shape = (sizes.slots, sizes.value_heads + 1, sizes.value_head, sizes.key_head)
        self.ssm_pool = self.normal(*shape, dtype=sizes.state_dtype)
        self.ssm_state = self.ssm_pool[:, :-1]

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype or self.sizes.dtype)

    def inputs(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return mixed_qkv, b and a."""
        heads = self.sizes.value_heads
        return self.normal(tokens, self.sizes.channels), self.normal(tokens, heads), self.normal(tokens, heads)

    def out(self, tokens: int, fill: float = 7.0) -> torch.Tensor:
        return torch.full((tokens, self.sizes.value_heads, self.sizes.value_head), fill, dtype=self.sizes.dtype)

    def copy(self) -> GdnLayer:
        """Return a layer with the same weights and caches of its own with the same content."""
        other = GdnLayer(self.sizes, self.seed)
        other.conv_pool.copy_(self.conv_pool)
        other.ssm_pool.copy_(self.ssm_pool)
        return other

    def poison(self, *but: int) -> None:
        """Fill every slot but those named with NaN, and all memory between slots."""
        kept = {slot: (self.conv_state[slot].clone(), self.ssm_state[slot].clone()) for slot in but}
        self.conv_pool.fill_(torch.nan)
        self.ssm_pool.fill_(torch.nan)
        for slot, (conv, ssm) in kept.items():
            self.conv_state[slot] = conv
            self.ssm_state[slot] = ssm

    def bits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of both caches' memory as bytes."""
        return self.conv_pool.clone().view(torch.uint8), self.ssm_pool.clone().view(torch.uint8)

    def decode(self, inputs: tuple[torch.Tensor, ...], state_indices: torch.Tensor, out: torch.Tensor) -> None:
        torch.ops.sm70.gdn_decode(*self._arguments(inputs), state_indices, out, self.sizes.key_heads)

    def prefill(
        self,
        inputs: tuple[torch.Tensor, ...],
        query_start_loc: torch.Tensor,
        state_indices: torch.Tensor,
        has_initial_state: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        where = (query_start_loc, state_indices, has_initial_state)
        torch.ops.sm70.gdn_prefill(*self._arguments(inputs), *where, out, self.sizes.key_heads)

    def verify(
        self,
        inputs: tuple[torch.Tensor, ...],
        query_start_loc: torch.Tensor,
        state_indices: torch.Tensor,
        num_accepted_tokens: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        where = (query_start_loc, state_indices, num_accepted_tokens)
        torch.ops.sm70.gdn_verify(*self._arguments(inputs), *where, out, self.sizes.key_heads)

    def log(self) -> torch.Tensor:
        """Return a log for `gdn_verify_log` that holds what is not a number."""
        sizes = self.sizes
        width = sizes.key_heads * sizes.key_head + sizes.value_heads * sizes.value_head + sizes.value_heads
        return torch.full((sizes.slots, sizes.rows, width), torch.nan)

    def _arguments(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return *inputs, self.conv_state, self.conv_weight, self.ssm_state, self.a_log, self.dt_bias

    def memory(self, slot: int) -> Memory:
        """Return what a slot remembers, in float64."""
        history = self.conv_state[slot, :, : self.sizes.width - 1].mT.double()
        return Memory(history.clone(), self.ssm_state[slot].double())

    def no_memory(self) -> Memory:
        return Memory(*(torch.zeros_like(each) for each in (self.memory(0).history, self.memory(0).state)))


@dataclass(frozen=True)
class Memory:
    """The last width - 1 inputs [width - 1, C], oldest first, and the state [Hv, Dv, Dk]."""

    history: torch.Tensor
    state: torch.Tensor


def exact(layer: GdnLayer, inputs: tuple[torch.Tensor, ...], memory: Memory) -> tuple[torch.Tensor, Memory]:
    """Return the outputs [tokens, Hv, Dv] and what is remembered after them, by the definition, in float64."""
    sizes = layer.sizes
    keys, outputs = sizes.key_heads * sizes.key_head, []
    for x, b, a in zip(*(each.double() for each in inputs), strict=True):
        window = torch.cat((memory.history, x[None]))
        mixed = (window * layer.conv_weight.double().T).sum(0)
        mixed = mixed / (1 + (-mixed).exp())
        state, out = memory.state.clone(), []
        rate = torch.log1p((a + layer.dt_bias.double()).exp())
        for head in range(sizes.value_heads):
            key_head = head // (sizes.value_heads // sizes.key_heads)
            begin = key_head * sizes.key_head
            q = mixed[begin : begin + sizes.key_head]
            k = mixed[keys + begin : keys + begin + sizes.key_head]
            v = mixed[2 * keys + head * sizes.value_head : 2 * keys + (head + 1) * sizes.value_head]
            q = q / (q.square().sum() + 1e-6).sqrt() / sizes.key_head**0.5
            k = k / (k.square().sum() + 1e-6).sqrt()
            state[head] *= (-layer.a_log[head].double().exp() * rate[head]).exp()
            error = (v - state[head] @ k) / (1 + (-b[head]).exp())
            state[head] += torch.outer(error, k)
            out.append(state[head] @ q)
        outputs.append(torch.stack(out))
        memory = replace(memory, history=window[1:], state=state)
    return torch.stack(outputs), memory


def relative(seen: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(seen.double() - wanted.double()) / torch.linalg.vector_norm(wanted.double()))
