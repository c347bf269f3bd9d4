"""The scheduler's part: a marked request ends with an error, the others go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


class Base:
    """Stands for vLLM's scheduler: asks what becomes of each request's new tokens."""

    def __init__(self) -> None:
        self.evicted: set[int] = set()
        self.kv_cache_manager = SimpleNamespace(
            get_block_ids=lambda name: ([1, 2], [7]) if name == "bad" else ([3], [8]),
            evict_blocks=self.evicted.update,
        )

    def update_from_output(self, requests: list[Any], _output: Any) -> dict[str, tuple[list[int], bool]]:
        return {request.request_id: self._update_request_with_output(request, [5]) for request in requests}

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:
        return new_token_ids, False


def test_a_marked_request_ends_with_an_error_without_a_token_and_the_others_go_on() -> None:
    from vllm.v1.engine import FinishReason
    from vllm.v1.request import RequestStatus

    from appliance.vllm_plugin.sm70.sentinels import EndsBrokenRequests

    class Ours(EndsBrokenRequests, Base):
        pass

    scheduler = Ours()
    good, bad = (
        SimpleNamespace(request_id=name, status=RequestStatus.RUNNING, num_computed_tokens=3)
        for name in ("good", "bad")
    )
    marked = SimpleNamespace(num_nans_in_logits={"bad": 2, "good": 0})
    assert scheduler.update_from_output([good, bad], marked) == {"good": ([5], False), "bad": ([], True)}
    assert (good.status, bad.status) == (RequestStatus.RUNNING, RequestStatus.FINISHED_ERROR)
    assert RequestStatus.get_finished_reason(bad.status) == FinishReason.ERROR
    assert scheduler.nonfinite_requests == 1
    # What it computed may hold the cause, and nobody else may find it in the prefix cache.
    assert scheduler.evicted == {1, 2, 7}
    assert scheduler.update_from_output([good], SimpleNamespace(num_nans_in_logits=None)) == {"good": ([5], False)}


def test_each_requests_rows_are_told_apart() -> None:
    from appliance.vllm_plugin.sm70.sentinels import broken_requests

    assert broken_requests([False, True, True, False], [1, 2, 1], ["a", "b", "c"]) == {"b": 2}
    assert broken_requests([False] * 4, [1, 2, 1], ["a", "b", "c"]) == {}
