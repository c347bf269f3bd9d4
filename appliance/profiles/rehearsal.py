"""A rehearsal: a V100's profile on a machine without V100s, because a person named the platform. Pure.

sm70            GPUs of compute capability 7.0 or newer, any driver from the profile's oldest on: it compiles the
                kernels' PTX for the card that is there.
sm70-reference  no GPU: vLLM's CPU engine, every operator by its reference in plain torch.

Memory, links and everything else that a profile needs hold as they do in a real start. A rehearsal is never chosen by
itself, and says in every place that shows its figures that they are no V100's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.acceleration.platforms import AUTO, REFERENCE, SM70, VOLTA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.profiles.schema import Profile
    from appliance.topology.machine import Gpu

NO_FIGURES = "no time and no rate that it gives is a V100's"


def rehearsed(profile: Profile, platform: str) -> Profile:
    """Return the profile with what `platform` needs of a machine, and the engine that serves it there."""
    if profile.engine != "v100" or platform == AUTO:
        return profile
    needs = profile.needs
    if platform == REFERENCE:
        # On the CPU no memory is shared between cards, and no driver is asked.
        nothing = {"gpus": 0, "capability": None, "links": "none", "driver_min": None, "driver_max": None}
        return profile.model_copy(update={"engine": "portable", "needs": needs.model_copy(update=nothing)})
    return profile.model_copy(update={"needs": needs.model_copy(update={"driver_max": None})})


def refusal(profile: Profile, platform: str) -> str | None:
    """Return why `platform` does not serve the profile at all, None where it does."""
    if platform == AUTO or profile.engine == "v100":
        return None
    return f"vllm_platform {platform} rehearses profiles for V100s, and this one is the CPU engine's own"


def serves(capability: tuple[int, int], wanted: tuple[int, int], platform: str) -> bool:
    """Whether a GPU runs the kernels of a profile that is for `wanted`."""
    return capability >= wanted if platform == SM70 else capability == wanted


def notice(platform: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the line that says what is rehearsed on `gpus`, the chosen ones; None where the start is a real one."""
    if platform == REFERENCE:
        return (
            f"rehearsal: vllm_platform {platform} computes every operator by its reference on this machine's CPU; "
            f"{NO_FIGURES}"
        )
    others = {gpu.name: gpu.capability for gpu in gpus if gpu.capability != VOLTA}
    if platform != SM70 or not others:
        return None
    cards = ", ".join(
        f"{name} (compute capability {'unknown' if at is None else f'{at[0]}.{at[1]}'})" for name, at in others.items()
    )
    return f"rehearsal: vllm_platform {platform} runs a V100's kernels on {cards}; {NO_FIGURES}"
