"""Who serves an operator: our kernel, upstream's where it holds against the reference, else the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from appliance.vllm_plugin.sm70 import providers, rank_report
from appliance.vllm_plugin.sm70.providers import Choice, choose, differs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

ONE = torch.ones(4)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rank_report, "_NOTES", {})
    providers.forget()
    yield
    providers.forget()


@pytest.mark.parametrize(
    ("kernel", "off", "cuda", "triton", "provider", "says"),
    [
        (True, "", True, None, "kernel", ""),
        (True, "", False, None, "reference", "no CUDA device"),
        (True, "user_override", True, None, "reference", "user_override; upstream has no kernel"),
        (True, "selftest_failed:gdn_decode", True, "", "triton", "selftest_failed:gdn_decode"),
        (False, "", True, "", "triton", "no kernel of ours in this build"),
        (False, "kernel_awaits_gpu:gdn_decode", True, "", "triton", "kernel_awaits_gpu:gdn_decode"),
        (False, "", True, "off by 1", "reference", "no kernel of ours in this build; upstream's Triton kernel: off by"),
    ],
)
def test_each_falls_back_to_the_next_with_the_reason(
    kernel: bool, off: str, cuda: bool, triton: str | None, provider: str, says: str
) -> None:
    tried = None if triton is None else (lambda: triton)
    choice = choose("gdn_decode", kernel=kernel, off=off, cuda=cuda, triton=tried)
    assert (choice.operator, choice.provider) == ("gdn_decode", provider)
    assert choice.reason.startswith(says)


def test_upstreams_kernel_is_not_tried_where_ours_serves() -> None:
    def tried() -> str:
        raise AssertionError("tried")

    assert choose("gdn_decode", kernel=True, off="", cuda=True, triton=tried).provider == "kernel"


def test_a_choice_is_made_once_and_reported_under_its_route() -> None:
    assert providers.bind("attention_prefill") is providers.bind("attention_prefill")
    told = rank_report._NOTES["attention_backend"]["attention_prefill"]
    assert told == {"provider": "reference", "reason": "no CUDA device: the reference is the CPU's path"}
    assert providers.bind("gdn_verify") == Choice("gdn_verify", "reference", told["reason"])
    assert "gdn_verify" in rank_report._NOTES["dflash2_verifier"]


def test_a_route_that_upstreams_kernel_serves_says_so() -> None:
    providers.keep(Choice("gdn_decode", "triton", "kernel_awaits_gpu:gdn_decode"), "gdn_decode")
    assert rank_report._NOTES["gdn_decode"]["served_by"] == "triton"
    providers.keep(Choice("kv_cache_write", "kernel", ""), "attention_backend")
    providers.keep(Choice("attention_decode", "triton", ""), "attention_backend")
    assert "served_by" not in rank_report._NOTES["attention_backend"]
    # One operator in plain torch: the route's details name the others.
    providers.keep(Choice("attention_prefill", "reference", "x"), "attention_backend")
    assert "served_by" not in rank_report._NOTES["attention_backend"]


def results(*values: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Give one value after the other, the last for ever."""
    left = list(values)
    return lambda: (ONE, left.pop(0) if len(left) > 1 else left[0])


def fails() -> tuple[torch.Tensor, ...]:
    raise RuntimeError("out of resource\nsecond line")


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        (results(ONE), ""),
        (results(ONE + 0.009), ""),
        (results(ONE, ONE * 1.001), "result 1 differs between two runs"),
        (results(ONE * 1.5), "result 1 is off the reference by 5.0e-01; 1.0e-02 is allowed"),
        (results(ONE * torch.nan), "result 1 differs between two runs"),
        (fails, "RuntimeError: out of resource"),
    ],
)
def test_upstreams_kernel_must_repeat_and_agree(candidate: Callable[[], tuple[torch.Tensor, ...]], says: str) -> None:
    assert differs(results(ONE), candidate, lambda right: 0.01 * float(right.abs().max())) == says
