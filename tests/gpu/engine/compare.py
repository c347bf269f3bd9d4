"""The engines of tests/gpu/engine/run.sh: `jobs FOLDER` writes what each runs, `record FOLDER FILE [NAME]...` compares.

FOLDER/model has the checkpoints, and FOLDER/runs what collect.py left. With names, the other runs stay as FILE has
them, where it is of the same plugin and kernels on the same GPU.
"""

from __future__ import annotations

import datetime
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from tests.gpu.engine import provenance

TOP_1 = 0.99
MEAN_KL = 1e-3

LENGTHS = (1, 2, 7, 8, 64, 65, 300, 1500)
TOKENS = 64
"""Of each answer: 512 positions in all, of which five may have another best token."""
COMMON: dict[str, Any] = {
    "dtype": "float16",
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 4096,
    "language_model_only": True,
    "enable_prefix_caching": False,
    # Given and not measured: the engines share one GPU, and each would count the others' memory.
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 4 * 1024**3,
}
OURS: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "graphs": {},
    "e4m3": {"kv_cache_dtype": "fp8"},
    "prefix_cache": {"enable_prefix_caching": True},
    "chunked": {"max_num_batched_tokens": 256},
}
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "upstream": ("graphs", {}),
    "upstream_fp8": ("e4m3", {"kv_cache_dtype": "fp8"}),
}
"""By name the run whose sequences it follows, and what differs."""


def write_jobs(folder: Path) -> None:
    """Write NAME.json for collect.py, one for each engine."""
    chosen = random.Random(1)
    prompts = [[chosen.randrange(8, 32000) for _ in range(length)] for length in LENGTHS]
    for name, own in OURS.items():
        engine = COMMON | {"model": str(folder / "model/fp8"), "attention_backend": "CUSTOM"} | own
        job = {"engine": engine, "prompts": prompts, "max_tokens": TOKENS, "mode": "generate"}
        (folder / f"{name}.json").write_text(json.dumps(job))
    for name, (followed, own) in THEIRS.items():
        kernels = {"attention_backend": "TRITON_ATTN", "additional_config": {"gdn_prefill_backend": "triton"}}
        engine = COMMON | {"model": str(folder / "model/dequantised"), "enforce_eager": True} | kernels | own
        job = {"engine": engine, "prompts": prompts, "mode": "follow", "follow": str(folder / "runs" / followed)}
        (folder / f"{name}.json").write_text(json.dumps(job))


def compared(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> dict[str, float]:
    """Return agreement and divergence of two lists of log-probabilities [positions, vocabulary]."""
    agree, total, divergences, gaps = 0, 0, [], []
    for mine, upstream in zip(ours, theirs, strict=True):
        assert mine.shape == upstream.shape, (mine.shape, upstream.shape)
        p, q = mine.cuda().float(), upstream.cuda().float()
        divergences.append((p.exp() * (p - q)).sum(-1).clamp(min=0))
        differs = p.argmax(-1) != q.argmax(-1)
        agree += int((~differs).sum())
        total += p.shape[0]
        best = q.topk(2, dim=-1).values
        gaps.append((best[:, 0] - best[:, 1])[differs])
    divergence, gap = torch.cat(divergences), torch.cat(gaps)
    return {
        "positions": total,
        "top_1": agree / total,
        "mean_kl": float(divergence.mean()),
        "max_kl": float(divergence.max()),
        "largest_gap_where_top_1_differs": float(gap.max()) if gap.numel() else 0.0,
    }


def judged(folder: Path, name: str) -> dict[str, Any]:
    """Return what one of our runs showed: repeats, batches, and its divergence from upstream where that followed it."""
    runs = folder / "runs"
    own = json.loads((runs / name / "tokens.json").read_text())
    against = "upstream_fp8" if name == "e4m3" else "upstream"
    theirs = json.loads((runs / against / "tokens.json").read_text())
    found: dict[str, Any] = {
        "against": against,
        "same_tokens": sum(mine == other for mine, other in zip(own["sequences"], theirs["sequences"], strict=True)),
        "three_repeats_equal": all(one == own["repeats"][0] for one in own["repeats"]),
        "as_alone_in_a_batch": sum(own["together_equal"]),
        "prompts": len(LENGTHS),
        "all_ended_by_length": all(one == ["length", TOKENS] for one in own["finish"]),
        "loaded_s": round(own["times"]["loaded_s"], 1),
    }
    logits, followed = (torch.load(runs / each / "logits.pt") for each in (name, against))
    # Upstream read another run's sequences: only where ours are the same do positions correspond.
    same = [i for i, ids in enumerate(own["sequences"]) if ids == theirs["sequences"][i]]
    found |= compared([logits[i] for i in same], [followed[i] for i in same])
    agrees = found["top_1"] >= TOP_1 and found["mean_kl"] <= MEAN_KL
    whole = found["three_repeats_equal"] and found["all_ended_by_length"]
    return found | {"passed": agrees and whole and len(same) >= len(LENGTHS) - 1}


def record(folder: Path, file: Path, names: list[str]) -> int:
    """Write the record, print a line for each run, and return 0 where all passed."""
    import vllm

    of = {
        "gpu": torch.cuda.get_device_name(),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        **provenance.hashes(),
        "limits": {"top_1": TOP_1, "mean_kl": MEAN_KL},
    }
    before = json.loads(file.read_text()) if names and file.exists() else {}
    kept = before.get("runs", {}) if all(before.get(name) == value for name, value in of.items()) else {}
    found = kept | {name: judged(folder, name) for name in names or OURS}
    missing = [name for name in OURS if name not in found]
    written = of | {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "passed": not missing and all(one["passed"] for one in found.values()),
        "runs": found,
    }
    file.write_text(json.dumps(written, indent=1) + "\n")
    for name, one in found.items():
        same, batch = one["same_tokens"], one["as_alone_in_a_batch"]
        print(
            f"{name:14} top-1 {one['top_1']:.4f}  KL {one['mean_kl']:.2e}  same tokens {same}/{len(LENGTHS)}"
            f"  batch {batch}/{len(LENGTHS)}  {'ok' if one['passed'] else 'FAILED'}"
        )
    if missing:
        print(f"no run of {', '.join(missing)}")
    return 0 if written["passed"] else 1


if __name__ == "__main__":
    if sys.argv[1] == "jobs":
        write_jobs(Path(sys.argv[2]))
    else:
        sys.exit(record(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
