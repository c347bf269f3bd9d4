"""Decode attention as its routes say: which kernel may read the pages, from which batch on, and in how many parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.vllm_plugin.sm70 import admission, attention_providers, operators, providers, route_setup
from appliance.vllm_plugin.sm70.providers import Choice
from sm70_kernels import dispatch
from sm70_kernels.attention import operator as attention
from sm70_kernels.attention import table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

ON = {name: RouteState("enabled") for name in ROUTES}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dispatch.use_references(())
    attention.serve_dual_from(table.DUAL_FROM)
    attention.split_contexts(True)


def asked(monkeypatch: pytest.MonkeyPatch, kv_dtype: str) -> dict[str, bool]:
    """Return of each operator whether upstream's kernel may be tried for it."""
    found: dict[str, bool] = {}

    def bind(operator: str, triton: Any = None) -> Choice:
        found[operator] = triton is not None
        return Choice(operator, "reference", "")

    monkeypatch.setattr(providers, "bind", bind)
    attention_providers.choose(kv_dtype, 6, 256)
    return found


def test_upstreams_kernel_is_never_tried_on_pages_in_our_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators.packs_pages()
    assert asked(monkeypatch, "auto") == dict.fromkeys(ROUTES["attention_backend"].operators, False)
    dispatch.use_references(["kv_cache_write", "attention_decode"])
    assert not operators.packs_pages()
    assert asked(monkeypatch, "auto")["attention_decode"]
    assert not asked(monkeypatch, "fp8_e4m3")["attention_decode"]


@pytest.mark.parametrize(
    ("off", "environment", "dual", "split"),
    [
        ({}, {}, 16, True),
        ({}, {"VLLM_FLASH_V100_XQA_G6_DUAL_CTA_MIN_BATCH": "24"}, 24, True),
        ({"dual_attention_b16": "kv_dtype"}, {"VLLM_FLASH_V100_XQA_G6_DUAL_CTA_MIN_BATCH": "2"}, None, True),
        ({"long_context": "user_override"}, {}, 16, False),
        # Off for another reason than its switch: where the kernel serves at all, it splits.
        ({"long_context": "head_dim"}, {}, 16, True),
    ],
)
def test_the_kernel_is_launched_as_its_routes_say(
    off: dict[str, str], environment: dict[str, str], dual: int | None, split: bool
) -> None:
    states = ON | {name: RouteState("disabled", reason) for name, reason in off.items()}
    route_setup._launch_decode_attention(states, environment)
    assert (attention._WAY.dual_from, attention._WAY.split) == (dual, split)
    assert table.partitions(1, 1, attention._WAY.split).most == (80 if split else 1)


def test_the_widths_that_are_admitted_are_the_kernels() -> None:
    assert admission.HEADS == table.HEADS
