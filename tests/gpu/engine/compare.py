"""Hold runs of collect.py against each other and write the record: `compare.py FOLDER RECORD.json`.

FOLDER holds `pairs.json`: by name the folder of a run that generated and of the run that followed it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

TOP_1 = 0.99
MEAN_KL = 1e-3


def compared(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> dict[str, float]:
    """Return agreement and divergence of two lists of log-probabilities [positions, vocabulary]."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    agree, total, divergences, gaps = 0, 0, [], []
    for mine, upstream in zip(ours, theirs, strict=True):
        assert mine.shape == upstream.shape, (mine.shape, upstream.shape)
        p, q = mine.to(device).float(), upstream.to(device).float()
        divergences.append((p.exp() * (p - q)).sum(-1).clamp(min=0))
        agree += int((p.argmax(-1) == q.argmax(-1)).sum())
        total += p.shape[0]
        best = q.topk(2, dim=-1).values
        gaps.append((best[:, 0] - best[:, 1])[p.argmax(-1) != q.argmax(-1)])
    divergence, gap = torch.cat(divergences), torch.cat(gaps)
    return {
        "positions": total,
        "top_1": agree / total,
        "mean_kl": float(divergence.mean()),
        "max_kl": float(divergence.max()),
        "largest_gap_where_top_1_differs": float(gap.max()) if gap.numel() else 0.0,
    }


def main() -> int:
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    pairs: dict[str, dict[str, str]] = json.loads((folder / "pairs.json").read_text())
    found: dict[str, Any] = {}
    for name, pair in pairs.items():
        said = {role: json.loads((folder / run / "tokens.json").read_text()) for role, run in pair.items()}
        logits = {role: torch.load(folder / run / "logits.pt") for role, run in pair.items()}
        figures = compared(logits["generated"], logits["followed"])
        ours = said["generated"]
        found[name] = {
            **figures,
            "repeats_equal": all(one == ours["repeats"][0] for one in ours["repeats"]),
            "together_equal": sum(ours["together_equal"]),
            "prompts": len(ours["together_equal"]),
            "finish": ours["finish"],
            "times": {role: one["times"] | {"all_s": one["seconds"]} for role, one in said.items()},
            "passed": figures["top_1"] >= TOP_1 and figures["mean_kl"] <= MEAN_KL,
        }
    record.write_text(json.dumps(found, indent=1) + "\n")
    for name, one in found.items():
        print(
            f"{name:32} top-1 {one['top_1']:.4f}  KL {one['mean_kl']:.2e}  repeats {one['repeats_equal']}  "
            f"together {one['together_equal']}/{one['prompts']}  {'ok' if one['passed'] else 'FAILED'}"
        )
    return 0 if all(one["passed"] and one["repeats_equal"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
