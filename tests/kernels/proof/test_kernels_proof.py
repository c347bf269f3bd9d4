"""The proof itself: an operator that is wrong in any one way does not pass it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels import selftest
from sm70_kernels.cases import Case, Scope
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.errors import KernelError
from sm70_kernels.launch.outputs import GUARD_BYTES, new, watched
from sm70_kernels.proof import prove as proving
from sm70_kernels.proof.prove import prove, relative_error, same_bits
from sm70_kernels.proof.subject import Subject, subjects
from sm70_kernels.registry import registered

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")
CASE = Case("double", {"count": 64})
TURNS = itertools.count()


def double(x: torch.Tensor) -> torch.Tensor:
    out = new(x.shape, x.dtype, x.device)
    out.copy_(2 * x)
    return out


def almost(x: torch.Tensor) -> torch.Tensor:
    out = double(x)
    out *= 1.01
    return out


def forgetful(x: torch.Tensor) -> torch.Tensor:
    out = new(x.shape, x.dtype, x.device)
    out[:-1] = 2 * x[:-1]
    return out


def fickle(x: torch.Tensor) -> torch.Tensor:
    out = double(x)
    out[0] += 1e-3 * (next(TURNS) % 2)
    return out


def sprawling(x: torch.Tensor) -> torch.Tensor:
    out = double(x)
    beyond = out.as_strided((1,), (1,), out.storage_offset() + out.numel())
    beyond.fill_(0)
    return out


def short(x: torch.Tensor) -> torch.Tensor:
    return double(x[:-1])


def greedy(x: torch.Tensor) -> torch.Tensor:
    out = double(x)
    x[3] = 0
    return out


def trespassing(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((1,), (1,), x.storage_offset() + x.numel()).fill_(0)
    return double(x)


def subject(run: Any) -> Subject:
    return Subject(
        operator="double",
        kernels=("double",),
        inputs=lambda case, device: (torch.linspace(1, 2, case.sizes["count"], device=device).half(),),
        run=run,
        reference=lambda x: 2 * x,
        moved_bytes=lambda case: 4 * case.sizes["count"],
    )


def test_a_right_operator_passes() -> None:
    outcome = prove(subject(double), CASE, CPU)
    assert outcome.passed
    assert outcome.error == 0
    assert outcome.sentence() == ""
    assert outcome.case == "double[count=64]"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (almost, "relative error 1.00e-02 above 1e-03"),
        (forgetful, "relative error inf above 1e-03"),
        (fickle, "results differ from run to run"),
        (sprawling, "bytes outside the results were written"),
        (greedy, "arguments were changed"),
        (trespassing, "bytes outside the results were written"),
        (short, "results of another shape than the reference's"),
    ],
)
def test_a_wrong_operator_is_caught(run: Callable[..., torch.Tensor], says: str) -> None:
    outcome = prove(subject(run), CASE, CPU)
    assert not outcome.passed
    assert says in outcome.sentence()


def test_a_fresh_result_is_poisoned_only_while_it_is_watched() -> None:
    with watched() as watch:
        assert bool(torch.isnan(new((5,), torch.float16, CPU)).all())
        assert bool(torch.isnan(new((5,), torch.float32, CPU)).all())
        assert new((3, 2), torch.float16, CPU).data_ptr() % 16 == 0
        assert watch.intact()
        before = new((4,), torch.float16, CPU)
        before.as_strided((1,), (1,), before.storage_offset() - 1).fill_(0)
        assert not watch.intact()
    assert new((4,), torch.float16, CPU).untyped_storage().nbytes() == 8 < GUARD_BYTES


def test_bits_tell_apart_what_equality_does_not() -> None:
    nothing, minus = torch.zeros(1), -torch.zeros(1)
    unknown = torch.full((1,), float("nan"))
    assert not same_bits((nothing,), (minus,))
    assert same_bits((unknown,), (unknown.clone(),))


def test_the_relative_error_is_over_the_whole_result() -> None:
    wanted = torch.tensor([3.0, 4.0])
    assert relative_error(wanted + torch.tensor([0.0, 0.5]), wanted) == 0.1
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.tensor([float("inf"), 4.0]), wanted) == float("inf")


@pytest.mark.parametrize("operator", list(subjects()))
def test_every_reference_passes_its_own_proof(operator: str) -> None:
    chosen = subjects()[operator]
    for case in cases_of(operator, "suite"):
        # The reference in FP32 against itself in FP64: the gate must leave room for one rounding, and no more is used.
        # What takes a CPU long is left to the GPU.
        short = case.sizes.get("tokens", 0) <= 33 and case.sizes.get("length", 0) <= 100
        if short and chosen.moved_bytes(case) <= 4 * 2**20:
            outcome = prove(chosen, case, CPU, 2)
            assert outcome.passed, f"{case.name}: {outcome.sentence()}"


def test_inputs_are_the_same_each_time() -> None:
    chosen = subjects()["add_rms_norm"]
    case = cases_of("add_rms_norm", "selftest")[0]
    once, again = chosen.inputs(case, CPU), chosen.inputs(case, CPU)
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])
    assert not torch.equal(once[0], chosen.inputs(cases_of("add_rms_norm", "selftest")[2], CPU)[0])


def test_every_registered_kernel_is_under_proof() -> None:
    proven = {kernel for chosen in subjects().values() for kernel in chosen.kernels}
    assert {spec.kernel.name for spec in registered()} <= proven


@pytest.mark.parametrize("scope", ["selftest", "suite", "benchmark"])
def test_cases_have_distinct_names_and_every_operator_has_some(scope: Scope) -> None:
    for operator in subjects():
        names = [case.name for case in cases_of(operator, scope)]
        assert names
        assert len(set(names)) == len(names)


def test_the_self_test_passes_each_operator() -> None:
    results = selftest.run(subjects(), CPU)
    assert all(result.passed and not result.reason for result in results.values())
    assert results["rms_norm"].cases == len(cases_of("rms_norm", "selftest"))


def missing(*_: object) -> torch.Tensor:
    raise KernelError("operator_missing:gate", "gate-threads256 is not there in build/kernels")


def refused(*_: object) -> torch.Tensor:
    raise KernelError("launch_failed:gate", "cuLaunchKernel says CUDA_ERROR_ILLEGAL_ADDRESS")


def faulty(*_: object) -> torch.Tensor:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported")


@pytest.mark.parametrize(
    ("run", "reason", "detail"),
    [
        (missing, "operator_missing:silu_and_mul", "gate-threads256 is not there in build/kernels"),
        (refused, "selftest_failed:silu_and_mul", "cuLaunchKernel says CUDA_ERROR_ILLEGAL_ADDRESS"),
        (faulty, "selftest_failed:silu_and_mul", "CUDA error: an illegal memory access was encountered"),
        (lambda x: x[..., : x.shape[-1] // 2], "selftest_failed:silu_and_mul", "relative error"),
    ],
)
def test_the_self_test_says_why_an_operator_is_not_to_be_used(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., torch.Tensor], reason: str, detail: str
) -> None:
    broken = dataclasses.replace(subjects()["silu_and_mul"], run=run)
    monkeypatch.setattr(selftest, "subjects", lambda: {"silu_and_mul": broken})
    result = selftest.run(["silu_and_mul"], CPU)["silu_and_mul"]
    assert not result.passed
    assert result.reason == reason
    assert detail in result.detail
    assert "\n" not in result.detail


def test_five_runs_are_compared_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proving.REPEATS == 5
    runs: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return double(x)

    prove(subject(counted), CASE, CPU)
    assert len(runs) == 5
