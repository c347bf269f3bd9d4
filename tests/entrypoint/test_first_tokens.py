"""What is made of the engine's answers to the fixed prompts, and how they are asked for."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from entrypoint.answering import Api
from entrypoint.compile_cache import Tokens
from entrypoint.first_tokens import compared, unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_TEXT = "the model completes no text, so that no later start can be compared with this one"
NO_REPEAT = "greedy tokens do not repeat in this engine, so that no later start can be compared with this one"

Answers = list[tuple[int | None, list[int] | None]]


@pytest.mark.parametrize(
    ("answers", "expected", "outcome"),
    [
        ([(200, [1, 2])], [1, 2], (200, Tokens([1, 2], matches=True))),
        ([(200, [1, 3]), (200, [1, 2])], [1, 2], (200, Tokens([1, 2], matches=True))),
        ([(200, [1, 3]), (200, [1, 3])], [1, 2], (200, Tokens([1, 3], matches=False))),
        ([(200, [1, 3]), (200, [1, 4])], [1, 2], (200, Tokens([1, 4], matches=False))),
        ([(200, [1, 2]), (200, [1, 2])], None, (200, Tokens([1, 2]))),
        ([(200, [1, 2]), (200, [1, 3])], None, (200, Tokens(None, note=NO_REPEAT))),
        ([(400, None)], None, (400, Tokens(None, note=NO_TEXT))),
        ([(400, None)], [1, 2], (400, Tokens(None, note=NO_TEXT))),
        ([(200, None)], [1, 2], (200, Tokens(None, note=NO_TEXT))),
        ([(None, None)], [1, 2], (None, Tokens(None))),
        ([(200, [1, 3]), (503, None)], [1, 2], (503, Tokens(None))),
    ],
)
def test_what_the_answers_prove(
    answers: Answers, expected: list[int] | None, outcome: tuple[int | None, Tokens]
) -> None:
    asked = iter(answers)
    assert compared(lambda: next(asked), expected) == outcome
    assert list(asked) == [], "nothing is asked for nothing"


def test_no_answer_and_a_failing_engine_are_asked_again_and_a_refusal_is_not() -> None:
    assert [unanswered(status) for status in (None, 500, 503, 200, 400, 404)] == [True, True, True, False, False, False]


@pytest.fixture
def serving() -> Iterator[Callable[[Any], tuple[Api, list[dict[str, Any]]]]]:
    servers: list[HTTPServer] = []

    def serve(answer: Any, status: int = 200) -> tuple[Api, list[dict[str, Any]]]:
        wishes: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                wishes.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return Api("127.0.0.1", servers[-1].server_port), wishes

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_prompt_is_asked_greedily_for_ids_and_past_the_prefix_cache(serving: Callable[..., Any]) -> None:
    api, wishes = serving({"choices": [{"token_ids": [7, 8, 9]}]})
    for _ in range(2):
        assert api.greedy("small", "Hello", 3, 5.0) == (200, [7, 8, 9])
    first, second = wishes
    assert first.pop("cache_salt") != second.pop("cache_salt")
    assert first == second
    assert (first["temperature"], first["max_tokens"], first["ignore_eos"], first["return_token_ids"]) == (
        *(0, 3, True),
        True,
    )


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"choices": []},
        {"choices": [{"text": "no ids"}]},
        {"choices": [{"token_ids": None}]},
        {"choices": [{"token_ids": [1, 2]}]},
        {"choices": [{"token_ids": [1, 2, "3"]}]},
        {"choices": [{"token_ids": [1, 2, True]}]},
    ],
)
def test_an_answer_without_all_ids_is_none(serving: Callable[..., Any], answer: Any) -> None:
    assert serving(answer)[0].greedy("small", "Hello", 3, 5.0) == (200, None)


def test_a_refusal_keeps_its_status(serving: Callable[..., Any]) -> None:
    assert serving({"error": "no"}, status=404)[0].greedy("small", "Hello", 3, 5.0) == (404, None)
    assert Api("127.0.0.1", 1).greedy("small", "Hello", 3, 5.0) == (None, None)
