"""The norms and the rotary embedding under proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import sm70_kernels.norm.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels import qwen38
from sm70_kernels.norm import reference
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from sm70_kernels.cases import Case

CACHE_ROWS = 4096


def _rms_norm(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    x = make.rows(sizes["tokens"], sizes["hidden"], sizes.get("gap", 0), 2.0 ** sizes.get("power", 0))
    return x, make.normal(sizes["hidden"], spread=0.3), qwen38.EPS


def _add_rms_norm(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    spread = 2.0 ** sizes.get("power", 0)
    x = make.rows(sizes["tokens"], sizes["hidden"], sizes.get("gap", 0), spread)
    dtype = {16: torch.float16, 32: torch.float32}[sizes["residual_bits"]]
    residual = make.normal(sizes["tokens"], sizes["hidden"], spread=3 * spread, dtype=dtype)
    return x, residual, make.normal(sizes["hidden"], spread=0.3), qwen38.EPS


def _gated_rms_norm(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    tokens, heads, head = sizes["tokens"], sizes["heads"], sizes["head"]
    x = make.normal(tokens, heads, head)
    # As in the model, z is the tail of a wider projection.
    z = make.normal(tokens, 2 * heads, head, spread=3.0)[:, heads:]
    return x, z, make.normal(head), qwen38.EPS


def _qk_norm_mrope(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    tokens, head, rotary = sizes["tokens"], sizes["head"], sizes["rotary"]
    q_heads, k_heads = sizes["q_heads"], sizes["k_heads"]
    # As in the model: query and output gate of each head side by side, then keys, then values.
    projected = make.normal(tokens, (2 * q_heads + 2 * k_heads) * head)
    q = projected[:, : 2 * q_heads * head].view(tokens, q_heads, 2 * head)[..., :head]
    k = projected[:, 2 * q_heads * head : (2 * q_heads + k_heads) * head].view(tokens, k_heads, head)
    frequencies = 1e7 ** (-torch.arange(0, rotary, 2).double() / rotary)
    angles = torch.outer(torch.arange(CACHE_ROWS).double(), frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=1).half().to(device)
    rows = (tokens,) if sizes["axes"] == 1 else (3, tokens)
    positions = make.whole(*rows, below=CACHE_ROWS)
    sections = (rotary // 2 - 2 * (rotary // 6), rotary // 6, rotary // 6)
    if rotary == qwen38.ROTARY:
        sections = qwen38.MROPE_SECTIONS
    return q, k, positions, make.normal(head, spread=0.3), make.normal(head, spread=0.3), cache, sections, qwen38.EPS


def _rms_norm_bytes(case: Case) -> int:
    elements = case.sizes["tokens"] * case.sizes["hidden"]
    carried = case.sizes.get("residual_bits", 0)
    return elements * (2 + 2 + (carried // 8 + 4 if carried else 0)) + 2 * case.sizes["hidden"]


def _gated_rms_norm_bytes(case: Case) -> int:
    return 2 * 3 * case.sizes["tokens"] * case.sizes["heads"] * case.sizes["head"]


def _qk_bytes(case: Case) -> int:
    sizes = case.sizes
    heads = sizes["q_heads"] + sizes["k_heads"]
    # One row of cosines and sines a token: each frequency is read from one axis.
    return sizes["tokens"] * (4 * heads * sizes["head"] + 2 * sizes["rotary"] + 8 * sizes["axes"])


SUBJECTS = (
    Subject(
        operator="rms_norm",
        kernels=("rms_norm",),
        inputs=_rms_norm,
        run=torch.ops.sm70.rms_norm,
        reference=reference.rms_norm,
        moved_bytes=_rms_norm_bytes,
    ),
    Subject(
        operator="add_rms_norm",
        kernels=("rms_norm",),
        inputs=_add_rms_norm,
        run=torch.ops.sm70.add_rms_norm,
        reference=reference.add_rms_norm,
        moved_bytes=_rms_norm_bytes,
    ),
    Subject(
        operator="gated_rms_norm",
        kernels=("gated_rms_norm",),
        inputs=_gated_rms_norm,
        run=torch.ops.sm70.gated_rms_norm,
        reference=reference.gated_rms_norm,
        moved_bytes=_gated_rms_norm_bytes,
    ),
    Subject(
        operator="qk_norm_mrope",
        kernels=("qk_norm_mrope",),
        inputs=_qk_norm_mrope,
        run=torch.ops.sm70.qk_norm_mrope,
        reference=reference.qk_norm_mrope,
        moved_bytes=_qk_bytes,
    ),
)
