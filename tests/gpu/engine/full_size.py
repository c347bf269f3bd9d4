"""Serve Qwen3.8-27B's 64 layers at full size with random weights on one large GPU: `full_size.py FOLDER RECORD.json`.

Loads, captures, and answers prompts of 2048 tokens with 256 tokens, one alone and 32 at once; every answer is to have
exactly that many tokens and end by length.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from tests.gpu.engine import provenance
from tests.gpu.engine.make_model import BLOCK, config

PROMPT, TOKENS, TOGETHER = 2048, 256, 32


def main() -> int:
    from vllm import LLM, SamplingParams

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    ignored = ["lm_head", "model.language_model.embed_tokens", "model.visual", "re:.*in_proj_[ab]$", "re:.*conv1d$"]
    quantisation = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ignored,
    }
    described = config(64, 248320) | {"quantization_config": quantisation}
    (folder / "config.json").write_text(json.dumps(described))
    began = time.monotonic()
    engine = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float16",
        attention_backend="CUSTOM",
        language_model_only=True,
        max_model_len=4096,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.45,
        enable_prefix_caching=False,
        cudagraph_capture_sizes=[1, 8, 32],
    )
    loaded = time.monotonic() - began
    print(f"loaded and captured in {loaded:.0f} s", flush=True)
    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    record: dict[str, object] = {**provenance.hashes(), "layers": 64, "loaded_s": round(loaded, 1)}
    good = True
    for count in (1, TOGETHER):
        prompts = [{"prompt_token_ids": [(i * 7 + k) % 200000 for i in range(PROMPT)]} for k in range(count)]
        start = time.monotonic()
        outputs = [one.outputs[0] for one in engine.generate(prompts, wanted, use_tqdm=False)]
        ended = [(one.finish_reason, len(one.token_ids)) for one in outputs]
        good = good and ended == [("length", TOKENS)] * count
        record[f"requests_{count}"] = {"all_length_256": ended == [("length", TOKENS)] * count}
        print(f"{count} at once: {time.monotonic() - start:.0f} s, {sorted(set(ended))}", flush=True)
        record["steps"] = engine.collective_rpc("sm70_counters")
        Path(sys.argv[2]).write_text(json.dumps(record, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
