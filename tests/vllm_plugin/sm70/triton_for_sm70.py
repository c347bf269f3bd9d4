"""Compile Triton kernels of vLLM for sm_70, each from vLLM's own call of it, and write what came out.

    CUDA_VISIBLE_DEVICES= python -m tests.vllm_plugin.sm70.triton_for_sm70 FILE.json

No GPU is needed: a driver stands in that names sm_70, and what would be launched is only compiled, with the signature,
the constants and the alignments that the call gives it. With CUDA_VISIBLE_DEVICES empty vLLM takes Triton for usable.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from sm70_kernels import qwen38

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = GPUTarget("cuda", 70, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

SEQUENCES, PAGE, PAGES = 4, 784, 8
"""784 tokens: a page of this model's hybrid cache at tensor parallel size 4."""


@dataclass(frozen=True)
class Compiled:
    """What a kernel became. `dot` is a tt.dot of Triton's IR, `mma` an instruction of the tensor cores in PTX."""

    kernel: str
    dot: bool
    mma: bool
    registers: int
    stack: int
    """Bytes of local memory of a thread, spilled registers among them."""
    instructions: int


CARD = SimpleNamespace(name="Tesla V100-SXM2-32GB", major=7, minor=0, multi_processor_count=80, gcnArchName="")
"""What torch says of the GPU: vLLM's modules ask while they are imported."""


class Sm70Driver:
    """Stands in for Triton's driver: one GPU of compute capability 7.0, which is never used."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def examined(kernel: Any) -> Compiled:
    """Look into a compiled kernel of Triton's."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
        sass = subprocess.run([CUOBJDUMP, "-sass", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout)
    assert found is not None, usage.stdout
    ptx = kernel.asm["ptx"]
    assert ".target sm_70" in ptx
    return Compiled(
        kernel.metadata.name,
        dot="tt.dot" in kernel.asm["ttir"],
        mma=re.search(r"\b(mma|wmma|wgmma)\b", ptx) is not None,
        registers=int(found[1]),
        stack=int(found[2]),
        instructions=len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s", sass.stdout, re.MULTILINE)),
    )


def recorded(calls: list[Callable[[], object]]) -> list[Compiled]:
    """Make the calls, compiling what they launch; raises whatever Triton raises where a kernel does not compile."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **rest: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **rest)
        if not any(kernel is each for each in kernels):
            kernels.append(kernel)
        return kernel

    driver.set_active(Sm70Driver())
    JITFunction.run = compiled
    ask, torch.cuda.get_device_properties = torch.cuda.get_device_properties, lambda *_: CARD
    try:
        for call in calls:
            call()
    finally:
        JITFunction.run = run
        torch.cuda.get_device_properties = ask
        driver._active = None
    return [examined(kernel) for kernel in kernels]


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def halves(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def slot_mapping() -> None:
    from vllm.v1.worker.block_table import BlockTable

    table = object.__new__(BlockTable)
    table.pcp_world_size = table.dcp_world_size = table.cp_kv_cache_interleave_size = 1
    table.pcp_rank = table.dcp_rank = 0
    table.max_num_batched_tokens, table.block_size = 8192, PAGE
    table.block_table = SimpleNamespace(gpu=integers(SEQUENCES, 336))
    table.slot_mapping = SimpleNamespace(gpu=integers(8192, dtype=torch.int64))
    table.compute_slot_mapping(SEQUENCES, integers(SEQUENCES + 1), integers(SEQUENCES, dtype=torch.int64))


def state_copies() -> None:
    from vllm.v1.worker.mamba_utils import batch_memcpy

    addresses = integers(96, dtype=torch.int64)
    batch_memcpy(addresses, addresses.clone(), integers(96))


def grammar() -> None:
    from xgrammar.kernels import apply_token_bitmask_inplace_triton as module

    bits = integers(SEQUENCES, qwen38.VOCABULARY // 32)
    for indices in (None, integers(2)):
        module.apply_token_bitmask_inplace_triton(halves(SEQUENCES, qwen38.VOCABULARY), bits, None, indices)


def rejection() -> None:
    from vllm.v1.sample import rejection_sampler as module

    drafts = [7] * SEQUENCES
    tokens, ends = 7 * SEQUENCES, integers(SEQUENCES)
    drafted, sampled = integers(tokens), integers(SEQUENCES, 8)
    for value, old, new in ((torch.ones(SEQUENCES), 0, 1), (integers(SEQUENCES), 0, 0), (torch.ones(SEQUENCES), 0, 0)):
        module.expand_batch_to_tokens(value, ends, tokens, old, new)
    seeds = SimpleNamespace(generators={})
    probabilities = torch.ones(tokens, 4096)
    recovered = module.sample_recovered_tokens(7, drafts, ends, drafted, None, probabilities, seeds, drafted.device)
    greedy = torch.ones(SEQUENCES, dtype=torch.bool)
    bonus = integers(SEQUENCES, 1)
    best = integers(tokens, dtype=torch.int64)
    for is_greedy in (greedy, None):
        module.rejection_greedy_sample_kernel[(SEQUENCES,)](sampled, ends, drafted, best, bonus, is_greedy, 7)
    uniform = torch.ones(tokens, dtype=torch.float64)
    module.rejection_random_sample_kernel[(SEQUENCES,)](
        *(sampled, ends, drafted, None, probabilities, bonus, recovered, uniform, greedy, 7, 4096),
        NO_DRAFT_PROBS=True,
    )


def drafting() -> None:
    from vllm.v1.spec_decode import utils as module

    positions, lengths = integers(SEQUENCES, dtype=torch.int64), integers(SEQUENCES)
    slots = integers(SEQUENCES, dtype=torch.int64)
    module.eagle_step_update_slot_mapping_and_metadata(
        positions, integers(SEQUENCES, 336), lengths, PAGE, 32768, positions.clone(), slots
    )
    starts = integers(SEQUENCES + 1)
    module.eagle_prepare_inputs_padded_kernel[(SEQUENCES,)](
        lengths, lengths.clone(), starts, integers(SEQUENCES), integers(SEQUENCES), SEQUENCES
    )
    module.eagle_prepare_next_token_padded_kernel[(SEQUENCES,)](
        integers(SEQUENCES, 8),
        torch.zeros(SEQUENCES, dtype=torch.bool),
        *(integers(SEQUENCES) for _ in range(3)),
        *(qwen38.VOCABULARY, 8, SEQUENCES, 8),
        BLOCK_SIZE_TOKENS=8,
    )
    flags = torch.zeros(64, dtype=torch.bool)
    module.copy_and_expand_eagle_inputs_kernel[(SEQUENCES, 1)](
        *(integers(32), integers(32, dtype=torch.int64), integers(SEQUENCES)),
        *(integers(64), integers(64, dtype=torch.int64), flags, flags.clone(), integers(32), integers(32)),
        *(starts, lengths, 0, 0, 32, 8),
        shift_input_ids=True,
        BLOCK_SIZE_TOKENS=16,
    )


def gdn_decode() -> None:
    from appliance.vllm_plugin.sm70.gdn_providers import triton_decode

    heads, key_heads, head = 12, 4, 128
    channels = (heads + 2 * key_heads) * head
    triton_decode(
        halves(SEQUENCES, channels),
        halves(SEQUENCES, heads),
        halves(SEQUENCES, heads),
        halves(PAGES, 3, channels).transpose(-1, -2),
        halves(channels, 4),
        torch.zeros(PAGES, heads, head, head),
        torch.zeros(heads),
        torch.zeros(heads),
        integers(SEQUENCES),
        halves(SEQUENCES, heads, head),
        key_heads,
    )


def attention_of(rows: int) -> Callable[[], None]:
    """Return upstream's attention with as many rows for each sequence; more than one make a prefill of it."""

    def call() -> None:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        heads, head, segments = 6, 256, 16
        keys, values = halves(PAGES, 2, PAGE, 1, head).unbind(1)
        query = halves(SEQUENCES * rows, heads, head)
        unified_attention(
            q=query,
            k=keys,
            v=values,
            out=torch.zeros_like(query),
            cu_seqlens_q=integers(SEQUENCES + 1),
            max_seqlen_q=rows,
            seqused_k=integers(SEQUENCES),
            max_seqlen_k=32768,
            softmax_scale=head**-0.5,
            causal=True,
            window_size=(-1, -1),
            block_table=integers(SEQUENCES, 42),
            softcap=0,
            q_descale=None,
            k_descale=torch.ones(SEQUENCES, 1),
            v_descale=torch.ones(SEQUENCES, 1),
            seq_threshold_3D=32,
            num_par_softmax_segments=segments,
            softmax_segm_output=torch.zeros(32, heads, segments, head),
            softmax_segm_max=torch.zeros(32, heads, segments),
            softmax_segm_expsum=torch.zeros(32, heads, segments),
        )

    return call


def cache_write() -> None:
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

    keys, values = halves(PAGES, 2, PAGE, 1, 256).unbind(1)
    new, one = halves(SEQUENCES, 1, 256), torch.ones(())
    slots = integers(SEQUENCES, dtype=torch.int64)
    triton_reshape_and_cache_flash(new, new.clone(), keys, values, slots, "auto", one, one)


def rotary() -> None:
    from vllm.model_executor.layers.rotary_embedding.mrope import triton_mrope

    angles = halves(3, SEQUENCES, 32)
    heads = (halves(SEQUENCES, 6 * 256), halves(SEQUENCES, 256))
    triton_mrope(*heads, angles, angles.clone(), [11, 11, 10], 256, 64, True)


def gated_norm() -> None:
    from vllm.model_executor.layers.fla.ops import layernorm_guard as module

    module.calc_rows_per_block = lambda *_: 4  # it asks the card for its multiprocessors
    rows = halves(SEQUENCES * 12, 128)
    module.layer_norm_fwd(rows, torch.ones(128), None, 1e-6, z=rows.clone(), norm_before_gate=True, is_rms_norm=True)


CALLS: dict[str, list[Callable[[], object]]] = {
    "In a step": [slot_mapping, state_copies, grammar],
    "With speculation": [rejection, drafting],
    "Where a kernel of ours is off": [gdn_decode, attention_of(1), rotary, gated_norm],
    "With `--attention-backend TRITON_ATTN`": [attention_of(9), cache_write],
}
"""The calls by the section of docs/triton-kernels.md that lists their kernels."""


def main(path: str) -> int:
    """Write {section: [a kernel's record, ...]}."""
    found = {section: [asdict(each) for each in recorded(calls)] for section, calls in CALLS.items()}
    Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
