"""What is added to the engine's environment. Pure: nothing is created or read here."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from appliance.acceleration import platforms
from appliance.cache.store import FOLDERS
from appliance.errors import ConfigurationError, nearest
from appliance.launch.arguments import VLLM
from appliance.launch.plan import Sourced
from appliance.paths import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TABLE = CONFIG / "vllm" / f"environment-{VLLM}.json"

REQUIRE_ACCELERATION = "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION"
OWN = (REQUIRE_ACCELERATION, "VLLM_FLASH_V100_XQA_G6_DUAL_CTA_MIN_BATCH")
"""Variables of our plugin that carry vLLM's prefix."""

PLUGINS = ("appliance", "appliance_heartbeat", "appliance_sm70")
"""The names of our entry points, which VLLM_PLUGINS could leave out."""

# A name that may hold a secret is neither shown nor repeated; the engine inherits it anyway.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")

_FOLDERS = {
    "HOME": "home",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "VLLM_CONFIG_ROOT": "home/.config/vllm",
    "HF_HOME": "home/.cache/huggingface",
    "NUMBA_CACHE_DIR": "home/.cache/numba",
    "MPLCONFIGDIR": "home/.cache/matplotlib",
    "OUTLINES_CACHE_DIR": "home/.cache/outlines",
}
"""Under the state folder. TMPDIR is left alone: vLLM puts sockets there, whose paths may have 107 bytes at most."""

_COMPILED = {**FOLDERS, "SM70_KERNELS_CACHE": "sm70"}
"""Under the folder of a generation of the compile cache: what is compiled for one key, and nothing else."""

# These are set in every session, so that overriding them surprises nobody.
_UNREMARKABLE = frozenset({"HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"})


@cache
def known_variables() -> frozenset[str]:
    """Return the VLLM_* variables that vLLM 0.19.1 and our plugin read."""
    return frozenset(json.loads(TABLE.read_text(encoding="utf-8"))["variables"]) | frozenset(OWN)


def folders(state_dir: str) -> dict[str, str]:
    """Return the variables that name a folder of data or settings, all of them under `state_dir`."""
    return {name: str(PurePath(state_dir, part)) for name, part in _FOLDERS.items()}


def compiled(generation: str) -> dict[str, str]:
    """Return the variables that name a folder of compiled artefacts, all of them under the folder `generation`.

    They are no part of the plan: the key of a generation is known only once the model is there.
    """
    return {name: str(PurePath(generation, part)) for name, part in _COMPILED.items()}


def engine_environment(
    *,
    state_dir: Sourced,
    run_dir: Sourced,
    offline: Sourced,
    require_acceleration: Sourced,
    platform: Sourced,
    profile: tuple[str, Mapping[str, str]],
    gpus: Sequence[int],
    user: Mapping[str, str],
) -> tuple[dict[str, Sourced], list[str]]:
    """Return what is added to the engine's environment, and warnings.

    `profile` is the profile's name and variables; `user` the environment of the person who starts, whose VLLM_*
    variables and whose values for the profile's variables win. Raises ConfigurationError for a VLLM_PORT that
    Kubernetes made.
    """
    warnings = []
    added: dict[str, Sourced] = {}
    for name, folder in folders(state_dir.value).items():
        added[name] = Sourced(folder, "derived: HOME and all that libraries keep are under state_dir")
        if name in user and user[name] != folder and name not in _UNREMARKABLE:
            warnings.append(f"environment {name} is not used: it goes under state_dir (APPLIANCE_STATE_DIR)")
    warnings += [
        f"environment {name} is not used: compiled code goes under cache_dir (APPLIANCE_CACHE_DIR)"
        for name in _COMPILED
        if name in user
    ]
    # Without these, getpass asks the password database, which does not know an arbitrary user id.
    for name in ("USER", "LOGNAME"):
        added[name] = Sourced("appliance", "derived: a user id needs no passwd entry")
    added["APPLIANCE_RUN_DIR"] = run_dir
    if platform.value != platforms.AUTO or user.get(platforms.VARIABLE):
        added[platforms.VARIABLE] = platform
    # NVML counts GPUs in PCI bus order, CUDA by default the fastest first. Indices, since vLLM 0.19.1 turns each entry
    # into a number and stops at a UUID.
    added["CUDA_DEVICE_ORDER"] = Sourced("PCI_BUS_ID", "derived: the order in which NVML counts")
    visible = ",".join(map(str, gpus))
    added["CUDA_VISIBLE_DEVICES"] = Sourced(visible, "derived: the GPUs that the plan chose")

    standard = {
        # The model is local by the time the engine starts, so nothing needs to be looked up.
        "HF_HUB_OFFLINE": Sourced("1", "derived: the model is local when the engine starts"),
        "TRANSFORMERS_OFFLINE": Sourced("1", "derived: the model is local when the engine starts"),
        "VLLM_NO_USAGE_STATS": Sourced("1", "derived: the appliance reports to nobody"),
        "DO_NOT_TRACK": Sourced("1", "derived: the appliance reports to nobody"),
        **{name: Sourced(value, f"profile {profile[0]}") for name, value in profile[1].items()},
    }
    if require_acceleration.value:
        standard[REQUIRE_ACCELERATION] = Sourced("1", require_acceleration.source)
    for name, sourced in standard.items():
        pinned = offline.value and name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        added[name] = Sourced(user[name], f"environment {name}") if name in user and not pinned else sourced
    _vllm_variables(user, added, warnings)
    return dict(sorted(added.items())), warnings


def _vllm_variables(user: Mapping[str, str], added: dict[str, Sourced], warnings: list[str]) -> None:
    """Add the person's VLLM_* variables that may be shown, and warn of those that vLLM does not know."""
    for name, value in sorted(user.items()):
        if not name.startswith("VLLM_") or name in _COMPILED:
            continue
        if name == "VLLM_PORT" and "://" in value:
            raise ConfigurationError(
                f'environment VLLM_PORT is "{value}", which Kubernetes sets for a service called "vllm" and vLLM stops '
                "at; set enableServiceLinks: false in the pod, or rename the service"
            )
        if name not in known_variables() and name not in added:
            hint = nearest(name, known_variables())
            warnings.append(f"environment {name}: vLLM {VLLM} does not read it{hint}")
        if name not in added and not _SECRET.search(name):
            added[name] = Sourced(value, f"environment {name}")
    plugins = user.get("VLLM_PLUGINS")
    if plugins is not None:
        names = [*filter(None, plugins.split(",")), *PLUGINS]
        added["VLLM_PLUGINS"] = Sourced(",".join(dict.fromkeys(names)), "derived: the appliance's plugins are needed")
