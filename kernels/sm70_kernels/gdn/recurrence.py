"""The gated delta rule itself, in the type it is given: gates, convolution, one step, and chunks of 64 tokens.

A state is [value heads, Dv, Dk] and is worked per token as S ← exp(g)·S; S ← S + β·(v − S·k)·kᵀ; o = S·q, where q and k
are of length 1 and q is scaled by Dk**-0.5. Value head h takes key head h // (value heads / key heads).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 64
EPS = 1e-6
"""Added to the sum of squares of a query or key head before it is normed."""

SOFTPLUS_THRESHOLD = 20.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the recurrence takes of some tokens: q, k [..., Hk, Dk], v [..., Hv, Dv], g and beta [..., Hv]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def at(self, row: int) -> Tokens:
        """Return row `row` of each sequence, of tokens [sequences, rows, …]."""
        return Tokens(self.q[:, row], self.k[:, row], self.v[:, row], self.g[:, row], self.beta[:, row])


def gates(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return g, the logarithm of the decay, and beta."""
    x = a.to(dtype) + dt_bias.to(dtype)
    softplus = torch.where(x > SOFTPLUS_THRESHOLD, x, x.exp().log1p())
    return -a_log.to(dtype).exp() * softplus, _sigmoid(b.to(dtype))


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    # torch.sigmoid, silu and softplus round otherwise in the last elements of a CPU tensor, which do not fill a vector:
    # a sequence's bits would depend on its neighbours in the batch. exp, log1p and division do not.
    return 1 / (1 + (-x).exp())


def convolved(window: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return silu of the causal convolution [..., tokens, C] of `window` [..., width - 1 + tokens, C].

    `weight` is [C, width]. The products are added from the oldest token to the newest, whatever the number of tokens.
    """
    width = weight.shape[1]
    tokens = window.shape[-2] - width + 1
    total = window[..., :tokens, :] * weight[:, 0]
    for tap in range(1, width):
        total = torch.addcmul(total, window[..., tap : tap + tokens, :], weight[:, tap])
    return total * _sigmoid(total)


def heads_of(x: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, key_heads: int, key_head: int) -> Tokens:
    """Split x [..., q | k | v] into heads, norm q and k, scale q."""
    value_heads, keys = g.shape[-1], key_heads * key_head
    q, k, v = x.split([keys, keys, x.shape[-1] - 2 * keys], dim=-1)
    q, k = (_unit(each.unflatten(-1, (key_heads, key_head))) for each in (q, k))
    return Tokens(q * key_head**-0.5, k, v.unflatten(-1, (value_heads, -1)), g, beta)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + EPS).sqrt()


def step(state: torch.Tensor, token: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states [n, Hv, Dv, Dk] after one token each and the outputs [n, Hv, Dv]; `state` stays as it is."""
    state, _, out = logged_step(state, token)
    return state, out


def logged_step(state: torch.Tensor, token: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `step` does, and between the two what each value head writes [n, Hv, Dv], for `replay`."""
    group = token.v.shape[-2] // token.k.shape[-2]
    q, k = (each.repeat_interleave(group, dim=-2)[..., None] for each in (token.q, token.k))
    state = state * token.g.exp()[..., None, None]
    write = (token.v - (state @ k)[..., 0]) * token.beta[..., None]
    state = state.addcmul_(write[..., None], k.transpose(-1, -2))
    return state, write, (state @ q)[..., 0]


def replay(state: torch.Tensor, key: torch.Tensor, write: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """Return the states after one token each, to the bit as `step` had them, from what it wrote.

    `key` is [n, Hk, Dk], `write` [n, Hv, Dv], `decay` exp(g) [n, Hv].
    """
    group = write.shape[-2] // key.shape[-2]
    keys = key.repeat_interleave(group, dim=-2)[..., None, :]
    return (state * decay[..., None, None]).addcmul_(write[..., None], keys)


def chunked(state: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state [Hv, Dv, Dk] after tokens [length, …] and the outputs [length, Hv, Dv], by chunks.

    Equal to `step` over the tokens in exact arithmetic. Within a chunk what each token writes follows from a triangular
    system; differences of decays are formed as logarithms, so that none overflows or loses its digits.
    """
    length, key_heads = tokens.k.shape[:2]
    group = tokens.v.shape[1] // key_heads
    size = min(CHUNK, length)

    def cut(x: torch.Tensor, heads: tuple[int, ...]) -> torch.Tensor:
        # A padding token has k = v = beta = g = 0 and leaves the state as it is.
        padded = torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1) + (0, -length % size))
        parts = padded.unflatten(0, (-1, size)).unflatten(2, heads)
        return parts.movedim(1, 1 + len(heads))

    q, k = (cut(each, (key_heads, 1)) for each in (tokens.q, tokens.k))
    v, g, beta = (cut(each, (key_heads, group)) for each in (tokens.v, tokens.g, tokens.beta))
    since = g.cumsum(-1)
    later = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
    decay = (since[..., :, None] - since[..., None, :]).masked_fill_(later, -torch.inf).exp_()
    mixing = (k @ k.mT * decay * beta[..., None]).tril(-1)
    sides = torch.cat((v, k * since.exp()[..., None]), dim=-1) * beta[..., None]
    solved = torch.linalg.solve_triangular(mixing, sides, upper=False, unitriangular=True)
    writes, erased = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    within = q @ k.mT * decay
    reading = q * since.exp()[..., None]
    keeping = k * (since[..., -1:] - since).exp()[..., None]
    through = since[..., -1, None, None].exp()

    state = state.unflatten(0, (key_heads, group))
    outputs = []
    for number in range(v.shape[0]):
        written = writes[number] - erased[number] @ state.mT
        outputs.append(reading[number] @ state.mT + within[number] @ written)
        state = state * through[number] + written.mT @ keeping[number]
    out = torch.stack(outputs).movedim(-2, 1).flatten(0, 1)[:length].flatten(1, 2)
    return state.flatten(0, 1), out
