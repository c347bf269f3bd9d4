"""A grammar that fails in the core: its request ends with an error, whatever fails and whenever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


class Fails:
    """A grammar of which one method raises."""

    def __init__(self, method: str) -> None:
        self.method = method

    def __getattr__(self, name: str) -> Any:
        def asked(*_: Any) -> Any:
            if name == self.method:
                raise RuntimeError("no such rule")
            return {"validate_tokens": [1], "is_terminated": False}.get(name, True)

        return asked


@pytest.mark.parametrize(
    ("method", "arguments", "otherwise"),
    [
        ("accept_tokens", ("r", [1]), True),
        ("validate_tokens", ([1, 2],), []),
        ("rollback", (1,), None),
        ("is_terminated", (), True),
        ("reset", (), None),
    ],
)
def test_a_failure_is_kept_and_constrains_nothing_more(
    method: str, arguments: tuple[Any, ...], otherwise: object
) -> None:
    from appliance.vllm_plugin.requests.contained_grammar import ContainedGrammar

    grammar: Any = ContainedGrammar(Fails(method))
    assert getattr(grammar, method)(*arguments) == otherwise
    assert grammar.failure == "RuntimeError"
    assert grammar.is_terminated()
    assert grammar.validate_tokens([1]) == []


def test_a_row_of_the_bitmask_allows_everything_where_it_cannot_be_filled() -> None:
    from appliance.vllm_plugin.requests.contained_grammar import ContainedGrammar

    bitmask = torch.zeros(2, 3, dtype=torch.int32)
    ContainedGrammar(Fails("fill_bitmask")).fill_bitmask(bitmask, 1)
    assert bitmask.tolist() == [[0, 0, 0], [-1, -1, -1]]


class Base:
    """Stands for vLLM's scheduler."""

    def __init__(self, *, structured_output_manager: Any) -> None:
        self.structured_output_manager = structured_output_manager

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:
        return new_token_ids, request.stops


def test_a_request_whose_grammar_does_not_compile_ends_and_the_others_go_on() -> None:
    from vllm.v1.request import RequestStatus

    from appliance.vllm_plugin.requests.contained_grammar import EndsFailedGrammars

    class Ours(EndsFailedGrammars, Base):
        pass

    def create(request: Any) -> Any:
        if request == "bad":
            raise RuntimeError("items must be a boolean or an object")
        return Fails("none")

    manager = SimpleNamespace(_create_grammar=create)
    scheduler = Ours(structured_output_manager=manager)

    def asked(grammar: Any, *, stops: bool = False) -> Any:
        structure = None if grammar is None else SimpleNamespace(grammar=grammar)
        return SimpleNamespace(
            request_id="r", status=RequestStatus.RUNNING, structured_output_request=structure, stops=stops
        )

    for request in (asked(None), asked(manager._create_grammar("good")), asked(Fails("none"))):
        assert scheduler._update_request_with_output(request, [5]) == ([5], False)
        assert request.status == RequestStatus.RUNNING
    for stops in (False, True):
        bad = asked(manager._create_grammar("bad"), stops=stops)
        assert scheduler._update_request_with_output(bad, [5]) == ([], True)
        assert bad.status == RequestStatus.FINISHED_ERROR
