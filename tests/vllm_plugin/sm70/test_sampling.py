"""The route `top_k_top_p`: our filter inside vLLM's samplers, with vLLM's draws, counted."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.vllm_plugin.sm70.test_runner import Base, State, input_batch, runner

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

VOCABULARY = 500


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Take back the name in vLLM's module, the counts and the routes."""
    from vllm.v1.sample import rejection_sampler

    from appliance.vllm_plugin.sm70 import counters, routes

    theirs, counts = rejection_sampler.apply_top_k_top_p, dict(counters.COUNTERS._counts)
    counters.COUNTERS._counts.clear()
    adopted = routes.adopted()
    yield
    rejection_sampler.apply_top_k_top_p = theirs
    counters.COUNTERS._counts.clear()
    counters.COUNTERS._counts.update(counts)
    routes.adopt(adopted)


def counted() -> dict[str, int]:
    from appliance.vllm_plugin.sm70.counters import COUNTERS

    return COUNTERS.of_route("top_k_top_p")


def batch(top_k: list[int], top_p: list[float]) -> Any:
    """The fields of vLLM's InputBatch that are read; its arrays are longer than the batch."""
    return SimpleNamespace(
        num_reqs=len(top_k),
        vocab_size=VOCABULARY,
        top_k_cpu=np.array([*top_k, 3, 3], dtype=np.int32),
        top_p_cpu=np.array([*top_p, 0.5, 0.5], dtype=np.float32),
    )


def bound() -> tuple[Any, Any]:
    """Return a stand-in for the runner with vLLM's own sampler in it, and the filter."""
    from vllm.v1.sample.sampler import Sampler

    from appliance.vllm_plugin.sm70 import sampling

    one = SimpleNamespace(sampler=Sampler())
    return one, sampling.bind(one)


def metadata(top_k: list[int], top_p: list[float], generators: dict[int, torch.Generator]) -> Any:
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    rows = len(top_k)
    return SamplingMetadata(
        temperature=torch.full((rows,), 0.8),
        all_greedy=False,
        all_random=True,
        top_p=torch.tensor(top_p),
        top_k=torch.tensor(top_k, dtype=torch.int32),
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(rows),
        presence_penalties=torch.zeros(rows),
        repetition_penalties=torch.ones(rows),
        output_token_ids=[[] for _ in range(rows)],
        spec_token_ids=[[] for _ in range(rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def test_tokens_are_those_that_vllms_own_operators_draw_with_the_same_generators() -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch, random_sample

    from appliance.vllm_plugin.sm70 import sampling

    top_k, top_p = [20, VOCABULARY, 5, VOCABULARY, 20, 1], [0.9, 0.7, 1.0, 1.0, 0.5, 0.2]
    logits = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(3)) * 2

    def seeds() -> dict[int, torch.Generator]:
        return {row: torch.Generator().manual_seed(40 + row) for row in range(6)}

    one, rows = bound()
    sampling.expect(rows, batch(top_k, top_p), None)
    asked = metadata(top_k, top_p, seeds())
    drawn = one.sampler(logits.clone(), asked).sampled_token_ids.flatten()
    kept = apply_top_k_top_p_pytorch(logits.clone().div_(0.8), asked.top_k, asked.top_p)
    wanted = random_sample(kept.softmax(-1, dtype=torch.float32), seeds())
    assert drawn.tolist() == wanted.tolist()
    assert counted() == {"dispatched": 1, "selected_rows": 4, "sorted_rows": 1}
    # The same generators draw the same, in any company.
    rows.forget()
    alone = metadata(top_k[:1], top_p[:1], {0: torch.Generator().manual_seed(40)})
    assert one.sampler(logits[:1].clone(), alone).sampled_token_ids.item() == drawn[0]


def test_rows_without_a_generator_are_repeated_by_the_global_seed() -> None:
    from appliance.vllm_plugin.sm70 import sampling

    one, rows = bound()
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(5))
    drawn = []
    for _ in range(2):
        sampling.expect(rows, batch([20] * 4, [0.9] * 4), None)
        asked = metadata([20] * 4, [0.9] * 4, {2: torch.Generator().manual_seed(1)})
        with torch.random.fork_rng():
            torch.manual_seed(9)
            drawn.append(one.sampler(logits.clone(), asked).sampled_token_ids.tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("mode", ["processed_logits", "processed_logprobs"])
def test_processed_logits_are_the_filtered_ones(mode: str) -> None:
    from appliance.vllm_plugin.sm70 import sampling

    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(5))
    sampler = sampling.Sm70TopKTopPSampler(mode, sampling.Filter())
    k = torch.tensor([3, 7], dtype=torch.int32)
    _, processed = sampler(logits, {}, k, None)
    assert processed is not None
    assert processed.isfinite().sum(-1).tolist() == [3, 7]


def test_drafted_tokens_are_filtered_as_their_requests_ask() -> None:
    """As many tokens as requests, but other ones: the counts alone do not tell them apart."""
    from vllm.v1.sample import rejection_sampler

    from appliance.vllm_plugin.sm70 import sampling

    one, rows = bound()
    assert one.sampler.topk_topp_sampler.rows is rows
    sampling.expect(rows, batch([3, VOCABULARY], [1.0, 1.0]), [2, 0])
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(5))
    tokens = rejection_sampler.apply_top_k_top_p(logits.clone(), torch.tensor([3, 3]), None)
    assert tokens.isfinite().sum(-1).tolist() == [3, 3]
    requests = rows.requests(logits.clone(), torch.tensor([3, VOCABULARY]), None)
    assert requests.isfinite().sum(-1).tolist() == [3, VOCABULARY]
    assert counted() == {"dispatched": 2, "selected_rows": 3}


def test_a_sort_of_the_whole_vocabulary_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    from appliance.vllm_plugin.sm70 import sampling

    _, rows = bound()
    for _ in range(2):
        sampling.expect(rows, batch([VOCABULARY] * 3, [0.9, 0.9, 1.0]), None)
        rows.requests(torch.zeros(3, VOCABULARY), None, torch.tensor([0.9, 0.9, 1.0]))
    assert counted() == {"dispatched": 2, "sorted_rows": 4}
    lines = [record.getMessage() for record in caplog.records if record.name == "vllm.appliance.sampling"]
    assert len(lines) == 1
    assert lines[0].startswith("2 rows of a step ask for top_p without top_k, or for a top_k above 1024")


def test_with_the_route_off_vllms_own_serves_and_its_rows_are_counted() -> None:
    from vllm.v1.sample import rejection_sampler

    from appliance.acceleration.report import USER_OVERRIDE, RouteState
    from appliance.acceleration.routes import ROUTES
    from appliance.vllm_plugin.sm70 import routes, sampling

    theirs = rejection_sampler.apply_top_k_top_p
    states = dict.fromkeys(ROUTES, RouteState("enabled"))
    routes.adopt({**states, "top_k_top_p": RouteState("disabled", USER_OVERRIDE)})
    one, rows = bound()
    assert rows is None
    assert not isinstance(one.sampler.topk_topp_sampler, sampling.Sm70TopKTopPSampler)
    assert rejection_sampler.apply_top_k_top_p is theirs
    sampling.expect(None, batch([20, VOCABULARY, VOCABULARY], [1.0, 0.5, 1.0]), None)
    assert counted() == {"dispatched": 0, "upstream_rows": 2}


def test_the_runner_tells_the_filter_what_each_step_asks_for() -> None:
    from appliance.vllm_plugin.sm70 import sampling

    seen: list[Any] = []

    class Noting(sampling.Filter):
        def expect(self, top_k: Any, top_p: Any, vocabulary: int, drafts: Any) -> None:
            seen.append((top_k.tolist(), top_p.tolist(), vocabulary, drafts))

        def forget(self) -> None:
            seen.append("forgotten")

    asked = vars(batch([20, 500], [0.5, 1.0]))
    going = SimpleNamespace(**{**vars(input_batch([9, 9], [3, 3], all_greedy=False)), **asked})
    one = runner(input_batch=going)
    one._filter = Noting()
    one.execute_model_state = State(None, torch.ones(2, VOCABULARY), torch.ones(2, 4))
    one.sample_tokens(None)
    one.execute_model_state = State(
        None, torch.ones(5, VOCABULARY), torch.ones(5, 4), SimpleNamespace(num_draft_tokens=[1, 2])
    )
    one.sample_tokens(None)
    told = ([20, 500], [0.5, 1.0], VOCABULARY)
    assert seen == [(*told, None), "forgotten", (*told, [1, 2]), "forgotten"]
    going.sampling_metadata.all_greedy = True
    one.execute_model_state = State(None, torch.ones(2, VOCABULARY), torch.ones(2, 4))
    one.sample_tokens(None)
    assert seen[4:] == ["forgotten"]


def test_the_filter_is_bound_while_the_model_is_loaded() -> None:
    from vllm.v1.sample.sampler import Sampler

    from appliance.vllm_plugin.sm70.runner import Sm70Steps
    from appliance.vllm_plugin.sm70.sampling import Sm70TopKTopPSampler

    class Loads(Base):
        def load_model(self) -> None:
            assert isinstance(self.sampler.topk_topp_sampler, Sm70TopKTopPSampler)  # type: ignore[attr-defined]

    class Ours(Sm70Steps, Loads):  # type: ignore[misc]
        pass

    one: Any = Ours(sampler=Sampler())
    one.load_model()
    assert one._filter is one.sampler.topk_topp_sampler.rows


def test_vllm_has_what_is_bound() -> None:
    """Names of vLLM 0.19.1 that a newer one may change."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
    from vllm.v1.worker import gpu_input_batch, gpu_model_runner

    assert rejection_sampler.apply_top_k_top_p is apply_top_k_top_p
    assert list(inspect.signature(apply_top_k_top_p).parameters) == ["logits", "k", "p"]
    assert "apply_top_k_top_p(logits, top_k, top_p)" in inspect.getsource(rejection_sampler.apply_sampling_constraints)
    assert list(inspect.signature(TopKTopPSampler.forward_native).parameters)[1:] == ["logits", "generators", "k", "p"]
    source = inspect.getsource(gpu_input_batch)
    for name in ("top_k_cpu", "top_p_cpu", "vocab_size"):
        assert f"self.{name} = " in source
    runner_source = inspect.getsource(gpu_model_runner)
    assert "self.sampler = Sampler(" in runner_source
    # Greedy requests ask for nothing, so that they are neither selected nor sorted beside others.
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, top_k=20, top_p=0.5)
    assert (greedy.top_k, greedy.top_p) == (0, 1.0)
