"""The self-test at load: what it says of each operator, and in which one a start hangs."""

from __future__ import annotations

import time

import pytest
import torch

from appliance.vllm_plugin.sm70 import selftest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch imports


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card on which gated_rms_norm gives other bits the second time."""
    from sm70_kernels import selftest as kernels

    def run(names: list[str], until: float) -> dict[str, kernels.Result]:
        assert until > time.monotonic()
        (name,) = names
        if name == "gated_rms_norm":
            reason = f"selftest_failed:{name}"
            return {name: kernels.Result(name, False, reason, "case 2: other bits the second time", 0.0, 1)}
        return {name: kernels.Result(name, True, "", "", 1e-4, 3)}

    monkeypatch.setattr(kernels, "run", run)


@pytest.mark.usefixtures("outcomes")
def test_every_operator_is_told_and_announced() -> None:
    lines: list[str] = []
    found = selftest.run(["rms_norm", "gated_rms_norm", "nobody_tested_this"], lines.append)
    assert {name: test.passed for name, test in found.items()} == {
        "rms_norm": True,
        "gated_rms_norm": False,
        "nobody_tested_this": False,
    }
    assert found["gated_rms_norm"].reason == "selftest_failed:gated_rms_norm"
    assert found["nobody_tested_this"].reason == "selftest_failed:nobody_tested_this"
    assert lines[:2] == ["SM70 self-test 1/3: rms_norm", "SM70 self-test 2/3: gated_rms_norm"]
    assert lines[-1].startswith("SM70 self-test: 1 of 3 passed in ")


def test_a_card_that_is_slow_holds_up_no_start() -> None:
    from sm70_kernels import selftest as kernels

    found = kernels.run(["rms_norm"], torch.device("cpu"), until=time.monotonic() - 1)["rms_norm"]
    assert (found.passed, found.reason, found.cases) == (False, "selftest_failed:rms_norm", 0)
    assert found.detail.endswith("the self-test's time was over")
