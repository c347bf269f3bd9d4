"""Run one engine of vLLM in this process and keep the logits it computes: `collect.py REQUEST.json FOLDER`.

REQUEST has `engine` (arguments of vllm.LLM), `prompts` (token ids), `max_tokens`, `mode`, and optionally `follow`, the
folder of another run. Modes: `generate` decodes greedily, each prompt alone and then all at once; `follow` reads the
sequences that another run generated as prompts, which takes the prefill path alone, with queries in FP16: beside an FP8
KV cache vLLM's Triton attention would round queries and probabilities to FP8 too, and be the less exact of the two.
FOLDER gets `tokens.json` (the sequences and what was checked) and `logits.pt` (float32 log-probabilities, a row a
position: halves near -10 are 2**-7 apart, and two tokens that differ by less would change places).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch


class Recorder:
    """Keeps what compute_logits returns, on the CPU, as log-probabilities."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.rows: list[torch.Tensor] = []
        self.on = False
        original = model.compute_logits

        def recorded(hidden_states: torch.Tensor) -> torch.Tensor | None:
            logits = original(hidden_states)
            if self.on and logits is not None:
                self.rows.append(torch.log_softmax(logits.float(), dim=-1).cpu())
            return logits

        model.compute_logits = recorded

    def take(self) -> torch.Tensor:
        """Return the rows since the last call, [positions, vocabulary] float32."""
        rows, self.rows = self.rows, []
        return torch.cat(rows) if rows else torch.empty(0)


def runner_of(engine: Any) -> Any:
    """Return the model runner of an engine that runs in this process."""
    worker = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


def main() -> None:
    request, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    from vllm import LLM, SamplingParams

    began = time.monotonic()
    engine = LLM(skip_tokenizer_init=True, **request["engine"])
    times = {"loaded_s": time.monotonic() - began}
    recorder = Recorder(runner_of(engine).model)
    prompts: list[list[int]] = request["prompts"]
    said: dict[str, Any] = {"times": times}

    def ask(asked: list[list[int]], **sampling: Any) -> list[Any]:
        parameters = SamplingParams(temperature=0, detokenize=False, **sampling)
        return list(engine.generate([{"prompt_token_ids": ids} for ids in asked], parameters, use_tqdm=False))

    recorder.on = True
    if request["mode"] == "generate":
        length = {"max_tokens": request["max_tokens"], "ignore_eos": True}
        sequences, kept = [], []
        for prompt in prompts:
            answer = list(ask([prompt], **length)[0].outputs[0].token_ids)
            sequences.append(prompt + answer)
            # A chunk of the prompt before the last gives a row as well, which nobody samples from.
            kept.append(recorder.take()[-len(answer) :])
        recorder.on = False
        said["repeats"] = [list(ask([prompts[0]], **length)[0].outputs[0].token_ids) for _ in range(3)]
        together = ask(prompts, **length)
        said["together_equal"] = [
            list(one.outputs[0].token_ids) == ids[len(prompt) :]
            for one, ids, prompt in zip(together, sequences, prompts, strict=True)
        ]
        said["finish"] = [[one.outputs[0].finish_reason, len(one.outputs[0].token_ids)] for one in together]
    else:
        for layer in runner_of(engine).model.modules():
            if getattr(layer, "query_quant", None) is not None:
                layer.query_quant = None
        followed = _followed(Path(request["follow"]) / "tokens.json")
        sequences, kept = followed["sequences"], []
        for ids, prompt in zip(sequences, prompts, strict=True):
            ask([ids], max_tokens=1, prompt_logprobs=1)
            # All positions of the prompt but the last, in order; the sampled row stands first or last by vLLM's order.
            kept.append(_positions(recorder.take(), len(ids), len(prompt)))
    said |= {"sequences": sequences, "seconds": time.monotonic() - began}
    torch.save(kept, folder / "logits.pt")
    written = folder / "tokens.json.part"
    written.write_text(json.dumps(said))
    written.replace(folder / "tokens.json")
    print(json.dumps({"folder": folder.name, **times, "seconds": said["seconds"]}), flush=True)


def _followed(file: Path, seconds: float = 300) -> Any:
    """Return what the followed run wrote; it may still be running while this engine loads."""
    end = time.monotonic() + seconds
    while not file.exists() and time.monotonic() < end:
        time.sleep(1)
    return json.loads(file.read_text())


def _positions(rows: torch.Tensor, tokens: int, prompt: int) -> torch.Tensor:
    """Return the rows that predict what follows the prompt. vLLM samples first, then computes the prompt's logits."""
    assert rows.shape[0] == tokens, (rows.shape, tokens)
    return rows[1:][prompt - 1 : tokens - 1]


if __name__ == "__main__":
    main()
