"""Which platform a process takes, and that it stops where vLLM took another."""

from __future__ import annotations

import pytest

from appliance.vllm_plugin.sm70 import activate, platform_choice
from appliance.vllm_plugin.sm70.platform_choice import REFERENCE, SM70, PlatformError, choose

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

VOLTA, HOPPER = (7, 0), (9, 0)


@pytest.mark.parametrize(
    ("named", "cpu_build", "capability", "expected"),
    [
        (None, False, VOLTA, SM70),
        ("", False, VOLTA, SM70),
        ("auto", False, VOLTA, SM70),
        (None, True, VOLTA, None),
        (None, False, HOPPER, None),
        (None, False, (7, 5), None),
        (None, False, None, None),
        ("sm70", False, HOPPER, SM70),
        ("sm70", True, None, SM70),
        ("sm70-reference", True, None, REFERENCE),
        ("sm70-reference", False, VOLTA, REFERENCE),
    ],
)
def test_the_first_gpu_decides_unless_a_platform_is_named(
    named: str | None, cpu_build: bool, capability: tuple[int, int] | None, expected: str | None
) -> None:
    assert choose(named, cpu_build=cpu_build, capability=capability) == expected


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(PlatformError, match=r"^APPLIANCE_VLLM_PLATFORM=sm80 names no platform: it takes auto, sm70, "):
        choose("sm80", cpu_build=False, capability=None)


def test_a_process_without_our_platform_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(platform_choice.SETTING, raising=False)
    monkeypatch.setattr(activate, "activate", lambda: pytest.fail("registered on a machine without SM70"))
    assert not activate.activate_if_chosen()


def test_a_start_stops_where_vllm_took_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM swallows the exceptions of a platform plugin and takes its own platform."""
    monkeypatch.setattr(activate, "chosen", lambda: SM70)
    with pytest.raises(PlatformError, match=r"^vLLM took the platform CpuPlatform, but this machine needs Sm70P"):
        activate.activate_if_chosen()


def test_this_vllm_is_the_build_for_cpus() -> None:
    assert platform_choice.is_cpu_build()
