"""The setting vllm_platform: where it comes from, what of the plan it changes, and where the plan says so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from appliance.acceleration.platforms import NAMES, VARIABLE
from appliance.cache.key import relevant
from appliance.commands.plan import to_text
from appliance.doctor.scope import of_plan
from appliance.errors import CheckError, ConfigurationError
from appliance.launch import settings
from appliance.launch.generation import describe
from appliance.launch.plan import Plan, Sourced
from appliance.launch.resolve import resolve
from appliance.paths import ROOT
from appliance.profiles import catalogue
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.launch.launch_cases import Ask

PROFILE = "qwen38_27b_fp8_32k"
PINNED = {"profile": PROFILE}
ONE_GPU = ("--tensor-parallel-size", "1")


def on_h200(ask: Ask, options: Mapping[str, str] = {}, environ: Mapping[str, str] = {}) -> Plan:
    return resolve(ask("1xh200", {**PINNED, **options}, after=ONE_GPU, environ=environ))


@pytest.mark.parametrize(
    ("options", "environ", "source"),
    [
        ({"vllm_platform": "sm70"}, {}, "command line"),
        ({}, {VARIABLE: "sm70"}, f"environment {VARIABLE}"),
        ({"vllm_platform": "sm70"}, {VARIABLE: "auto"}, "command line"),
    ],
)
def test_each_layer_can_ask_and_the_plan_says_which_did(
    options: dict[str, str], environ: dict[str, str], source: str, ask: Ask
) -> None:
    plan = on_h200(ask, options, environ)
    assert plan.settings["vllm_platform"] == Sourced("sm70", source)
    assert plan.environment[VARIABLE] == Sourced("sm70", source)


def test_the_plan_and_what_is_read_of_it_say_that_it_is_a_rehearsal(ask: Ask) -> None:
    plan = on_h200(ask, {"vllm_platform": "sm70"})
    assert plan.rehearsal is not None
    assert plan.rehearsal in plan.warnings
    assert f"  {plan.rehearsal}" in list(to_text(plan, describe(plan, {})))
    assert PlanRecord.from_json(json.loads(json.dumps(plan.to_json()))).rehearsal == plan.rehearsal


def test_nothing_is_rehearsed_unasked(ask: Ask) -> None:
    with pytest.raises(CheckError, match=r"compute capability 9\.0, and the kernels are for 7\.0"):
        on_h200(ask)
    plan = resolve(ask("none"))
    assert (plan.setting("vllm_platform"), plan.rehearsal) == ("auto", None)
    assert VARIABLE not in plan.environment


def test_a_variable_that_the_command_line_overrules_does_not_reach_the_engine(ask: Ask) -> None:
    plan = resolve(ask("none", {"vllm_platform": "auto"}, environ={VARIABLE: "sm70-reference"}))
    assert plan.profile == "portable_smollm2"
    assert plan.environment[VARIABLE] == Sourced("auto", "command line")


def test_another_name_is_refused_with_those_that_are_known(ask: Ask) -> None:
    with pytest.raises(ConfigurationError, match='vllm_platform is "sm80"; wanted auto or sm70 or sm70-reference'):
        on_h200(ask, {"vllm_platform": "sm80"})
    assert settings.SETTINGS["vllm_platform"].choices == NAMES
    assert settings.SETTINGS["vllm_platform"].variable == VARIABLE


def test_the_references_are_served_by_the_cpu_engine_and_checked_as_it_is(ask: Ask) -> None:
    asked = ask("none", {**PINNED, "vllm_platform": "sm70-reference"}, after=ONE_GPU)
    host = replace(asked.machine.host, memory_bytes=2**40, cgroup_memory_bytes=None)
    plan = resolve(replace(asked, machine=replace(asked.machine, host=host)))
    assert (plan.engine, plan.gpus) == ("portable", ())
    scope = of_plan(plan)
    assert (scope.engine, scope.needs.gpus, scope.rehearsal) == ("portable", 0, plan.rehearsal)
    assert plan.expected_acceleration == catalogue.load(PROFILE).expected_acceleration


def test_the_checks_ask_what_this_start_needs(ask: Ask) -> None:
    rehearsal = of_plan(on_h200(ask, {"vllm_platform": "sm70"})).needs
    assert (rehearsal.driver_min, rehearsal.driver_max) == (570, None)
    assert catalogue.load(PROFILE).needs.driver_max == 580


def test_what_one_platform_compiled_is_not_loaded_on_another(ask: Ask) -> None:
    plan = on_h200(ask, {"vllm_platform": "sm70"})
    assert ("$" + VARIABLE, "sm70") in list(relevant(PlanRecord.from_json(plan.to_json()), {}))


def test_the_profile_of_the_gpu_suite_fits_the_card_that_it_is_for(ask: Ask) -> None:
    profile = str(ROOT / "tests/gpu/engine/eight_layers.yaml")
    plan = resolve(ask("1xh200", {"profile": profile, "vllm_platform": "sm70"}))
    assert (plan.profile, plan.gpus, plan.engine) == ("eight_layers", (0,), "v100")
    assert of_plan(plan).needs.gpus == 1
