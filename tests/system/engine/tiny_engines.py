"""Runs engines on the tiny model in a process of its own, one after the other, and prints what they answer as JSON.

`python -m tests.system.engine.tiny_engines JOBS`: JOBS is a JSON list of jobs. A job has the folder of its `model`, the
`engine` arguments beyond the common ones, the `environment` variables from this job on, and `rounds`, lists of requests
(`prompt` as token ids, and `tokens`) that are made at once. A request may wait for `after` steps of the engine. A job
prints a line: the tokens and cached tokens of each request, how each ended, and the counters of all ranks.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

COMMON = {
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "enable_prefix_caching": False,
    "limit_mm_per_prompt": {"image": 0, "video": 0},
    "disable_log_stats": True,
    # Eight requests take 104 blocks; those of VLLM_CPU_KVCACHE_SPACE are a gigabyte, which ended engines leave behind.
    "num_gpu_blocks_override": 512,
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, make the rounds, and return what came of them."""
    from vllm import EngineArgs, LLMEngine, SamplingParams

    os.environ.update(job.get("environment", {}))
    engine = LLMEngine.from_engine_args(EngineArgs(model=job["model"], **{**COMMON, **job.get("engine", {})}))
    answers = []
    try:
        for number, requests in enumerate(job["rounds"]):
            waiting = [(each.get("after", 0), f"{number}-{i}", each) for i, each in enumerate(requests)]
            found: dict[str, Any] = {}
            steps = 0
            while waiting or engine.has_unfinished_requests():
                for entry in [one for one in waiting if one[0] <= steps]:
                    waiting.remove(entry)
                    name, request = entry[1:]
                    wanted = SamplingParams(temperature=0, max_tokens=request["tokens"], ignore_eos=True)
                    engine.add_request(name, {"prompt_token_ids": request["prompt"]}, wanted)
                for output in engine.step():
                    if output.finished:
                        (one,) = output.outputs
                        found[output.request_id] = {
                            "tokens": list(one.token_ids),
                            "reason": one.finish_reason,
                            "cached": output.num_cached_tokens,
                        }
                steps += 1
            answers.append([found[f"{number}-{i}"] for i in range(len(requests))])
        return {"rounds": answers, "counters": engine.collective_rpc("sm70_counters")}
    finally:
        engine.engine_core.shutdown()


def main() -> None:
    for job in json.loads(sys.argv[1]):
        answer = run(job)
        print(f"ANSWER {json.dumps(answer)}", flush=True)
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
    # Threads of the engine would keep the process for seconds; everything has been said.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
