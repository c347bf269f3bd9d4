"""Routes, operators, admissions and profiles name the same things."""

from __future__ import annotations

import pytest

from appliance.acceleration.routes import NOT_BUILT, REFERENCE, ROUTES, UPSTREAM, not_built, unserved
from appliance.profiles import catalogue
from appliance.vllm_plugin.sm70 import kernel_build
from appliance.vllm_plugin.sm70.admission import ADMISSIONS

NAMED = {name for route in ROUTES.values() for name in route.operators}


def test_every_operator_of_a_route_exists_or_is_declared_as_not_built() -> None:
    defined, kernels, awaiting = kernel_build.operators()
    assert kernels | awaiting <= defined
    assert not kernels & awaiting
    assert defined == NAMED - NOT_BUILT
    assert not NOT_BUILT & defined
    assert NOT_BUILT <= NAMED


def test_every_kernel_that_a_route_names_has_a_self_test() -> None:
    from sm70_kernels.proof.subject import subjects

    assert set(kernel_build.testable(kernel_build.operators().kernels)) <= subjects().keys()


def test_every_admission_is_some_routes_and_the_other_way_round() -> None:
    assert {route.admission for route in ROUTES.values()} == ADMISSIONS.keys()


def test_a_fall_back_is_known_and_ends() -> None:
    for route in ROUTES.values():
        seen, now = {route.name}, route.fallback
        while now not in (REFERENCE, UPSTREAM):
            assert now not in seen
            seen.add(now)
            now = ROUTES[now].fallback


def test_what_profiles_expect_and_switch_exists() -> None:
    switches = {route.switch for route in ROUTES.values()}
    for profile in catalogue.load_all():
        assert set(profile.expected_acceleration) <= ROUTES.keys()
        assert {name for name, value in profile.switches.items() if isinstance(value, bool)} <= switches


@pytest.mark.parametrize("name", ["qwen38_27b_fp8_c32", "qwen38_27b_fp8_32k", "qwen38_27b_fp8_tp2"])
def test_fp8_profiles_can_be_served_though_kernels_are_missing(name: str) -> None:
    expected = catalogue.load(name).expected_acceleration
    assert unserved(expected) == ()
    assert "all_reduce" in not_built(expected)


def test_the_release_profile_cannot_be_served_yet() -> None:
    expected = catalogue.load("qwen38_27b_nvfp4_dflash2").expected_acceleration
    assert unserved(expected) == ("nvfp4_dense", "nvfp4_prefill", "dflash2_draft")
