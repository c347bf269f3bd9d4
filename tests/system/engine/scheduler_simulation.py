"""vLLM's real schedulers with our record mixed in, driven without a model: `MODEL FOLDER async|sync|drafts`.

The engine for CPUs never schedules asynchronously, the one for GPUs does. A program of its own, because importing
vLLM changes the process. Leaves the step records and results.json in FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

import torch
from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from appliance.vllm_plugin.progress.scheduler import recording_scheduler

BLOCK = 16
DRAFTS = 3


def scheduler_of(model: str, mode: str, blocks: int) -> Any:
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        block_size=BLOCK,
        enable_prefix_caching=False,
        speculative_config={"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
        if mode == "drafts"
        else None,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = mode == "async"
    config.cache_config.num_gpu_blocks = blocks
    group = KVCacheGroupSpec(
        ["layer"], FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    )
    return recording_scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )


class Run:
    """Requests through a scheduler, with a pipeline of two steps where it is asynchronous, as EngineCore has it."""

    def __init__(self, scheduler: Any, depth: int, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.chance = chance
        self.pipeline: deque[tuple[Any, dict[str, int]]] = deque()
        self.sampled: dict[str, int] = {}
        self.counters: list[int] = []
        self.graphs: list[CUDAGraphStat | None] = []
        """What is left for vLLM's log."""
        self.running = 0
        """As the last statistics say, which is what the stat logger knows."""

    def drain(self) -> None:
        while self.scheduler.has_requests() or self.pipeline:
            self.step()

    def step(self) -> None:
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            samples = {}
            for name in output.num_scheduled_tokens:
                if not self.scheduler.requests[name].is_prefill_chunk:
                    samples[name] = 1 + self.chance.randint(0, len(output.scheduled_spec_decode_tokens.get(name, ())))
            self.pipeline.append((output, samples))
            if len(self.pipeline) < self.depth:
                return
        if not self.pipeline:
            self.finish(output, {})
            return
        self.finish(*self.pipeline.popleft())

    def finish(self, output: Any, samples: dict[str, int]) -> None:
        names = list(output.num_scheduled_tokens)
        made = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[[7] * samples.get(name, 0) for name in names],
                cudagraph_stats=CUDAGraphStat(len(names), len(names), 0, "FULL"),
            ),
        )
        for client in made.values():
            self.counters.append(client.scheduler_stats.step_counter)
            self.graphs.append(client.scheduler_stats.cudagraph_stats)
            self.running = client.scheduler_stats.num_running_reqs
            for one in client.outputs:
                self.sampled[one.request_id] = self.sampled.get(one.request_id, 0) + len(one.new_token_ids)
        if self.scheduler.num_spec_tokens:
            living = [name for name in samples if name in self.scheduler.requests]
            drafts = [[7] * self.chance.randint(0, DRAFTS) for _ in living]
            self.scheduler.update_draft_token_ids(DraftTokenIds(living, drafts))


def simulate(model: str, mode: str, blocks: int, *, abort: bool) -> dict[str, Any]:
    chance = random.Random(20)
    scheduler = scheduler_of(model, mode, blocks)
    run = Run(scheduler, 2 if mode == "async" else 1, chance)
    asked: dict[str, tuple[Request, int]] = {}
    for index in range(24):
        prompt, tokens = chance.randint(1, 200), chance.randint(1, 60)
        request = Request(f"r{index}", list(range(prompt)), SamplingParams(max_tokens=tokens, ignore_eos=True), None)
        asked[request.request_id] = request, tokens
        scheduler.add_request(request)
        for _ in range(chance.randint(0, 6)):
            run.step()
        if abort and index == 12:
            scheduler.finish_requests(scheduler.running[0].request_id, RequestStatus.FINISHED_ABORTED)
    run.drain()
    executed = run.counters[-1]
    run.step()
    after_an_empty_round = run.counters[-1]
    scheduler.add_request(Request("last", list(range(20)), SamplingParams(max_tokens=50, ignore_eos=True), None))
    for _ in range(5):
        run.step()
    running_before = run.running
    scheduler.finish_requests("last", RequestStatus.FINISHED_ABORTED)
    run.drain()
    scheduler.shutdown()
    return {
        "scheduler": type(scheduler).__name__,
        "executed": executed,
        "graphs_left_to_log": sum(graph is not None for graph in run.graphs),
        "after_an_empty_round": after_an_empty_round,
        "running_before_and_after_an_abort": [running_before, run.running],
        "prompts": sum(request.num_prompt_tokens for request, _ in asked.values()),
        "requests": len(asked),
        "generated": sum(run.sampled.get(name, 0) for name in asked),
        "preemptions": sum(request.num_preemptions for request, _ in asked.values()),
        "unfinished": [name for name, (_, tokens) in asked.items() if run.sampled.get(name) != tokens],
    }


def main(model: str, folder: Path, mode: str) -> None:
    results = {}
    # Pages for all requests at once, and so few that requests are preempted and computed anew.
    for name, blocks, abort in (("roomy", 400, False), ("scarce", 30, True)):
        run_dir = folder / name
        run_dir.mkdir()
        os.environ["APPLIANCE_RUN_DIR"] = str(run_dir)
        results[name] = simulate(model, mode, blocks, abort=abort)
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
