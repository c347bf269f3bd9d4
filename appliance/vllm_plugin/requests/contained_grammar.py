"""A structured output whose grammar fails in the engine's core ends its own request, and no other.

vLLM 0.19.1 lets such a failure out of the scheduler or the step, which ends the engine. Each grammar is wrapped: after
a failure it constrains nothing more, and the scheduler ends its request with an error before another token gets out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.v1.request import RequestStatus
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Result = TypeVar("Result")

logger = logging.getLogger("vllm.appliance.requests")


class ContainedGrammar(StructuredOutputGrammar):  # type: ignore[misc] # vllm is not analysed
    """A grammar of vLLM, None where it could not be compiled; `failure` is the error's type, if there was one.

    Not its text, which may quote what the client asked for.
    """

    def __init__(self, grammar: StructuredOutputGrammar | None, failure: str | None = None) -> None:
        self._grammar = grammar
        self.failure = failure

    def _ask(self, ask: Callable[[StructuredOutputGrammar], Result], otherwise: Result) -> Result:
        if self._grammar is None or self.failure is not None:
            return otherwise
        try:
            return ask(self._grammar)
        except Exception as error:  # noqa: BLE001 - of a library, for one request
            self.failure = type(error).__name__
            return otherwise

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """As the grammar; after a failure every token is accepted."""
        return self._ask(lambda grammar: bool(grammar.accept_tokens(request_id, tokens)), otherwise=True)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """As the grammar; after a failure no drafted token is accepted."""
        return self._ask(lambda grammar: list(grammar.validate_tokens(tokens)), otherwise=[])

    def rollback(self, num_tokens: int) -> None:
        """As the grammar."""
        self._ask(lambda grammar: grammar.rollback(num_tokens), otherwise=None)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """As the grammar; the row allows every token where it fails."""
        self._ask(lambda grammar: grammar.fill_bitmask(bitmask, batch_index), otherwise=None)
        if self.failure is not None:
            bitmask[batch_index].fill_(-1)

    def is_terminated(self) -> bool:
        """As the grammar; after a failure it is."""
        return self._ask(lambda grammar: bool(grammar.is_terminated()), otherwise=True)

    def reset(self) -> None:
        """As the grammar."""
        self._ask(lambda grammar: grammar.reset(), otherwise=None)


def contain(manager: Any) -> None:  # noqa: ANN401 - vLLM's StructuredOutputManager
    """Let `manager` wrap every grammar that it makes, and never raise in making one."""
    create = manager._create_grammar

    def contained(request: Any) -> ContainedGrammar:  # noqa: ANN401
        try:
            return ContainedGrammar(create(request))
        except Exception as error:  # noqa: BLE001 - of a library, for one request
            return ContainedGrammar(None, type(error).__name__)

    manager._create_grammar = contained


class EndsFailedGrammars:
    """Mixed in before a scheduler: ends each request whose grammar failed, with an error and without a token more."""

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - handed through to vLLM
        super().__init__(**arguments)
        contain(self.structured_output_manager)  # type: ignore[attr-defined]

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:  # noqa: ANN401
        kept, stopped = super()._update_request_with_output(request, new_token_ids)  # type: ignore[misc]
        asked = request.structured_output_request
        grammar = asked.grammar if asked is not None else None
        failure = grammar.failure if isinstance(grammar, ContainedGrammar) else None
        if failure is None or (stopped and request.status == RequestStatus.FINISHED_ERROR):
            return kept, stopped
        logger.error("Request %s ends with an error: its grammar failed (%s)", request.request_id, failure)
        request.status = RequestStatus.FINISHED_ERROR
        return [], True
