"""Time our kernels beside torch's and upstream's own, in one run on one card.

    python tests/gpu/benchmark.py FILE.json [OPERATOR ...]

Each figure is a call inside a graph, over arguments and results that together exceed L2. A share of 100% is the speed
of a large copy on this card. `copy` is torch's copy of as many bytes, timed as the kernels are: where few bytes move,
both take what a launch takes. What each rival is stands in `RIVALS`; `-` says that it has no such kernel, or is not
here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import sm70_kernels.activation.reference as gates
import sm70_kernels.norm.reference as norms
from sm70_kernels import dispatch
from sm70_kernels.attention.operator import is_packed
from sm70_kernels.attention.pack import pack
from sm70_kernels.cases import Case
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.launch import launch, launcher
from sm70_kernels.norm import table
from sm70_kernels.proof.subject import copied, subjects
from sm70_kernels.timing import copy_bandwidth, graph_microseconds, host_microseconds, rotations

if TYPE_CHECKING:
    from collections.abc import Callable

    Arguments = tuple[Any, ...]
    Call = Callable[[], object]

GPU = torch.device("cuda")
ROW_WISE = ("rms_norm", "add_rms_norm", "gated_rms_norm", "qk_norm_mrope", "silu_and_mul", "sigmoid_gate")
OPERATORS = (*ROW_WISE, "gdn_decode", "attention_decode")
REFERENCES = {name: function for module in (norms, gates) for name, function in vars(module).items()}
COMPILED = {name: torch.compile(REFERENCES[name], dynamic=True) for name in ROW_WISE}


def ours(operator: str, arguments: Arguments) -> Call:
    """Return our operator's call."""
    function = getattr(torch.ops.sm70, operator)
    if operator == "gdn_decode":
        *given, key_heads = arguments
        arguments = (*given, _gdn_out(arguments), key_heads)
    if operator == "attention_decode":
        query, kv_cache, *where, scale, kv_dtype, k_scale, v_scale = arguments
        held = pack(kv_cache) if is_packed(kv_cache) else kv_cache
        arguments = (query, held, *where, torch.empty_like(query), scale, kv_dtype, k_scale, v_scale)
    return lambda: function(*arguments)


def compiled(operator: str, arguments: Arguments) -> Call | None:
    """Return the reference's call, as torch.compile makes it; None for what walks a cache."""
    return (lambda: COMPILED[operator](*arguments)) if operator in COMPILED else None


def _gdn_out(arguments: Arguments) -> torch.Tensor:
    mixed_qkv, ssm_state = arguments[0], arguments[5]
    return mixed_qkv.new_empty(mixed_qkv.shape[0], *ssm_state.shape[1:3])


def eager(operator: str, arguments: Arguments) -> Call | None:
    """Return the call of torch's own fused kernel; its norm multiplies by w, as much work as by 1 + w."""
    if operator != "rms_norm":
        return None
    x, weight, eps = arguments
    return lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def upstream(operator: str, arguments: Arguments) -> Call | None:
    """Return the call of vLLM's own kernels. ImportError where there is no vLLM."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.fla.ops.layernorm_guard import rmsnorm_fn
    from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

    if operator == "rms_norm":
        x, weight, eps = arguments
        out = torch.empty_like(x)
        return lambda: _custom_ops.rms_norm(out, x, weight, eps)
    if operator == "add_rms_norm":
        x, residual, weight, eps = arguments
        carried = residual.half()
        return lambda: _custom_ops.fused_add_rms_norm(x, carried, weight, eps)
    if operator == "gated_rms_norm":
        x, z, weight, eps = arguments
        rows = x.reshape(-1, x.shape[-1]), z.reshape(-1, z.shape[-1])
        return lambda: rmsnorm_fn(rows[0], weight, None, z=rows[1], eps=eps, norm_before_gate=True)
    if operator == "qk_norm_mrope":
        q, k, positions, q_weight, k_weight, cache, sections, eps = arguments
        packed = [(heads.contiguous(), torch.empty_like(heads.contiguous())) for heads in (q, k)]

        def norm_and_turn() -> object:
            for (heads, out), weight in zip(packed, (q_weight, k_weight), strict=True):
                _custom_ops.rms_norm(out, heads, weight, eps)
            cosine, sine = cache[positions].chunk(2, dim=-1)
            flat = [out.view(out.shape[0], -1) for _, out in packed]
            return triton_mrope(*flat, cosine, sine, list(sections), q.shape[-1], cache.shape[1], True)

        return norm_and_turn
    if operator == "silu_and_mul":
        (x,) = arguments
        halved = x.new_empty((x.shape[0], x.shape[1] // 2))
        return lambda: torch.ops._C.silu_and_mul(halved, x)
    if operator == "gdn_decode":
        return _upstream_gdn(arguments)
    return _upstream_attention(arguments) if operator == "attention_decode" else None


def _upstream_gdn(arguments: Arguments) -> Call:
    """Return the call of vLLM's two kernels of a decode step, as its layer calls them."""
    from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule_packed_decode
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    mixed_qkv, b, a, conv_state, conv_weight, ssm_state, a_log, dt_bias, slots, _ = arguments
    out = _gdn_out(arguments).unsqueeze(1)
    # Slot 0 is vLLM's padding in the convolution: no sequence is to be skipped.
    slots = torch.arange(1, 1 + slots.shape[0], dtype=torch.int32, device=GPU)

    def step() -> object:
        mixed = causal_conv1d_update(
            mixed_qkv, conv_state, conv_weight, None, "silu", conv_state_indices=slots, validate_data=False
        )
        return fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=mixed,
            a=a,
            b=b,
            A_log=a_log,
            dt_bias=dt_bias,
            scale=ssm_state.shape[-1] ** -0.5,
            initial_state=ssm_state,
            out=out,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
        )

    return step


def _upstream_attention(arguments: Arguments) -> Call:
    """Return the call of vLLM's Triton kernel, cut into 16 segments as its backend does for few sequences."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    query, kv_cache, block_table, seq_lens, starts, scale, kv_dtype, k_scale, v_scale = arguments
    if kv_dtype != "auto":
        kv_cache = kv_cache.view(torch.float8_e4m3fn)
    tokens, heads, head = query.shape
    sequences, kv_heads = seq_lens.shape[0], kv_cache.shape[3]
    shape = (sequences, kv_heads)
    sums, states = torch.empty(tokens, heads, 16, head, device=GPU), torch.empty(2, tokens, heads, 16, device=GPU)
    out, longest = torch.empty_like(query), int(seq_lens.max())
    return lambda: unified_attention(
        q=query,
        k=kv_cache[:, 0],
        v=kv_cache[:, 1],
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=tokens // sequences,
        seqused_k=seq_lens,
        max_seqlen_k=longest,
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1),
        block_table=block_table,
        softcap=0,
        q_descale=None,
        k_descale=k_scale.expand(shape),
        v_descale=v_scale.expand(shape),
        seq_threshold_3D=128 // kv_heads,
        num_par_softmax_segments=16,
        softmax_segm_output=sums,
        softmax_segm_max=states[0],
        softmax_segm_expsum=states[1],
    )


RIVALS = {
    "ours": (ours, "torch.ops.sm70"),
    "compile": (compiled, "torch.compile of our reference: what upstream does for its Gemma norms (forward_native)"),
    "torch": (eager, "torch.nn.functional.rms_norm, by w"),
    "vllm": (
        upstream,
        "_custom_ops.rms_norm and fused_add_rms_norm, by w and not by 1 + w, the latter in place and with an FP16 "
        "residual (8 bytes an element, not 12); rmsnorm_fn; for qk_norm_mrope rms_norm of packed q and of packed k, a "
        "lookup and triton_mrope; silu_and_mul; for gdn_decode causal_conv1d_update and "
        "fused_recurrent_gated_delta_rule_packed_decode; for attention_decode unified_attention in 16 segments",
    ),
}


def measure(operator: str, case: Case, bandwidth: float) -> dict[str, Any]:
    """Return the µs of each rival for one case, and the share of the copy bandwidth."""
    subject = subjects()[operator]
    moved = subject.moved_bytes(case)
    first = subject.inputs(case, GPU)
    sets = [tuple(copied(each, GPU) for each in first) for _ in range(rotations(moved, GPU))]
    row: dict[str, Any] = {"case": case.name, "bytes": moved, "us": {}, "share": {}, "absent": {}}
    for name, (rival, _) in RIVALS.items():
        try:
            calls = [call for each in sets if (call := rival(operator, each)) is not None]
            if calls:
                row["us"][name] = round(graph_microseconds(calls), 3)
                row["share"][name] = round(moved / bandwidth * 1e6 / row["us"][name], 4)
        except Exception as error:  # noqa: BLE001 - whatever a rival does, ours is still measured
            row["absent"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    sources = [torch.empty(moved // 2, dtype=torch.uint8, device=GPU) for _ in sets]
    row["us"]["copy"] = round(graph_microseconds([source.clone for source in sources]), 3)
    return row


def overheads() -> dict[str, float]:
    """Return the host's µs: of the call into the driver, of a launch, of an operator, and of torch's own operators."""
    x, weight, eps = subjects()["rms_norm"].inputs(cases_of("rms_norm", "selftest")[0], GPU)
    out = torch.empty_like(x)
    spec = table.rms_norm(x.shape[-1], True, 0)
    assert spec is not None
    arguments = (out, 0, x, 0, weight, x.shape[0], x.shape[-1], x.stride(0), 0, eps)
    launch(spec, x.shape[0], arguments)
    function = launcher._FUNCTIONS[spec, torch.cuda.current_device()]
    ready = tuple(value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments)
    stream = torch.cuda.current_stream().cuda_stream
    fixed = (function._handle, x.shape[0], 1, 1, spec.threads // 32, 0, function._kinds, ready, stream)
    timed = {
        "call": lambda: function._launch(*fixed),
        "launch": lambda: launch(spec, x.shape[0], arguments),
        "operator": lambda: torch.ops.sm70.rms_norm(x, weight, eps),
        "torch_add_out": lambda: torch.add(x, x, out=out),
        "torch_add": lambda: torch.add(x, x),
        "torch_rms_norm": lambda: torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps),
    }
    return {name: round(host_microseconds(call), 3) for name, call in timed.items()}


def line(row: dict[str, Any]) -> str:
    """Return one line for a case: ours as a share of the copy bandwidth and of a copy as large, then µs of each."""
    columns = [row["us"].get(name) for name in (*RIVALS, "copy")]
    us = row["us"].get("ours")
    shares = "   -      - " if us is None else f"{row['share']['ours']:6.1%} {row['us']['copy'] / us:6.1%}"
    return f"{row['case']:76} {shares} " + " ".join(f"{'-' if us is None else f'{us:.2f}':>8}" for us in columns)


def main() -> int:
    """Measure, print one line a case, and write the record after each."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    bandwidth = copy_bandwidth(GPU)
    record: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "copy_bytes_per_s": round(bandwidth),
        "host_us": overheads(),
        "rivals": {name: what for name, (_, what) in RIVALS.items()},
        "cases": [],
    }
    host = record["host_us"]
    print(f"{record['gpu']}: copy {bandwidth / 1e9:.0f} GB/s")
    print("host µs:", ", ".join(f"{name} {us:.2f}" for name, us in host.items()))
    print(f"a launch takes {host['launch'] / host['torch_add_out']:.2f} of torch's add into a given tensor")
    print(f"{'µs':76} {'share':>6} {'copy':>6} " + " ".join(f"{name:>8}" for name in (*RIVALS, "copy")))
    absent: dict[str, str] = {}
    dispatch.try_awaiting()
    for operator in sys.argv[2:] or OPERATORS:
        for case in cases_of(operator, "benchmark"):
            row = measure(operator, case, bandwidth)
            record["cases"].append(row)
            absent |= {f"{operator}, {name}": why for name, why in row["absent"].items()}
            print(line(row), flush=True)
            Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(*(f"{rival}: {why}" for rival, why in absent.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
