"""`appliance profiles`: the profiles that are shipped, one of them in full, and which one fits a machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ConfigurationError
from appliance.launch import settings
from appliance.profiles import catalogue

if TYPE_CHECKING:
    import argparse

    from appliance.models.checkpoint import Checkpoint
    from appliance.profiles.schema import Profile
    from appliance.profiles.select import Selection
    from appliance.topology.machine import Machine

PLATFORM = settings.SETTINGS["vllm_platform"]

SUMMARY = "list the profiles, show one, or select the one that fits and say why the others do not"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|select")
    listed = actions.add_parser("list", allow_abbrev=False, help="this machine, what fits on it and what does not")
    shown = actions.add_parser("show", allow_abbrev=False, help="one profile in full, with every figure's provenance")
    shown.add_argument("name", metavar="NAME", help="a shipped profile, or the path of a YAML file")
    selected = actions.add_parser("select", allow_abbrev=False, help="the one that would be started, with its memory")
    selected.add_argument("--profile", metavar="NAME", help="take this one (APPLIANCE_PROFILE)")
    selected.add_argument("--force", action="store_true", help="take it although it does not fit (APPLIANCE_FORCE=1)")
    for each in (listed, selected):
        each.add_argument(
            "--topology", type=Path, metavar="FILE", help="a recorded machine, or the text of `nvidia-smi topo -m`"
        )
        each.add_argument(
            "--smi-xml", type=Path, metavar="FILE", help="the XML of `nvidia-smi -q -x` that goes with that text"
        )
        each.add_argument("--model", type=Path, metavar="DIR", help="the checkpoint that is to be served")
        each.add_argument(
            PLATFORM.option, choices=PLATFORM.choices, help=f"{PLATFORM.help} ({PLATFORM.variable}; default: auto)"
        )
    for each in (listed, shown, selected):
        each.add_argument("--json", action="store_true", help="JSON for programs")


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Returns 1 where `select` finds no profile that may be started."""
    if arguments.action == "show":
        return _show(arguments.name, arguments.json)
    from appliance.profiles.select import assess

    machine = _machine(arguments.topology, arguments.smi_xml)
    checkpoint = _checkpoint(arguments.model)
    choosing = arguments.action == "select"
    pinned = (arguments.profile or os.environ.get("APPLIANCE_PROFILE") or None) if choosing else None
    force = choosing and (arguments.force or _flag("APPLIANCE_FORCE"))
    profiles, pinned = _profiles(pinned)
    platform = _platform(arguments.vllm_platform)
    selection = assess(machine, profiles, checkpoint, pinned=pinned, force=force, platform=platform)
    if arguments.json:
        record = {"schema": 1, "machine": machine.to_json(), **selection.to_json()}
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        lines = [*_tell_machine(machine, checkpoint), *_tell_fits(selection, with_memory=choosing)]
        print("\n".join([*lines, *_tell_choice(selection)] if choosing else lines))
    return 1 if choosing and selection.chosen is None else 0


def _show(name: str, as_json: bool) -> int:
    profile = catalogue.load(name)
    record = profile.model_dump(mode="json", exclude_defaults=True)
    if as_json:
        print(json.dumps(record, indent=2, ensure_ascii=False))
        return 0
    import yaml

    print(yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120), end="")
    return 0


def _profiles(pinned: str | None) -> tuple[tuple[Profile, ...], str | None]:
    """Return the profiles to choose from and the pinned one's name, which may be given as a path."""
    shipped = catalogue.load_all()
    if pinned is None or pinned in catalogue.names():
        return shipped, pinned
    own = catalogue.load(pinned)
    return (*(profile for profile in shipped if profile.name != own.name), own), own.name


def _machine(topology: Path | None, smi_xml: Path | None) -> Machine:
    if topology is not None:
        from appliance.topology import recorded

        return recorded.load(topology, smi_xml)
    if smi_xml is not None:
        raise ConfigurationError("--smi-xml goes with --topology FILE, the text of `nvidia-smi topo -m`")
    from appliance.topology import live

    return live.detect()


def _checkpoint(folder: Path | None) -> Checkpoint | None:
    if folder is None:
        return None
    from appliance.models.checkpoint import inspect

    return inspect(folder)


def _platform(given: str | None) -> str:
    written = given or os.environ.get(PLATFORM.variable) or PLATFORM.default
    return str(settings.parse(PLATFORM, written, f"environment {PLATFORM.variable}", Path.cwd()))


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise ConfigurationError(f'environment {name} is "{value}"; wanted 1 or 0')


def _tell_machine(machine: Machine, checkpoint: Checkpoint | None) -> list[str]:
    from appliance.topology.islands import describe

    lines = [f"Machine: {machine.name}", *(f"  {line}" for line in describe(machine))]
    if machine.gpus:
        lines.append(f"  Driver {machine.driver or 'unknown'}.")
    lines += [f"  {note}" for note in machine.notes]
    if checkpoint is not None:
        size = f"{checkpoint.bytes / 2**30:.1f} GiB"
        lines.append(f"Checkpoint: {checkpoint.architecture}, {checkpoint.kind} ({checkpoint.scheme}), {size}")
    return lines


def _tell_fits(selection: Selection, *, with_memory: bool) -> list[str]:
    if selection.by_card:
        lines = ["", "Which one fits depends on the card:", *(f"  {line}" for line in selection.by_card)]
    else:
        lines = ["", "Fits:" if selection.ranked else "Nothing fits."]
    for fit in selection.ranked:
        lines.append(f"  {fit.profile}: {fit.title}")
        lines += [f"    - {reason}" for reason in fit.reasons]
        lines += [f"    {line}" for line in fit.memory.explain()] if with_memory and fit.memory else []
    lines += ["", "Does not fit:"] if selection.rejected else []
    for fit in selection.rejected:
        lines.append(f"  {fit.profile}: {fit.title}")
        lines += [f"    - {reason}" for reason in fit.reasons]
    if selection.advice:
        lines += ["", "What else could be done:", *(f"  - {line}" for line in selection.advice)]
    return lines


def _tell_choice(selection: Selection) -> list[str]:
    if selection.chosen is None:
        return ["", "Chosen: none; nothing would be started."]
    on = f" on GPU {', '.join(map(str, selection.gpus))}" if selection.gpus else ""
    warnings = [f"  warning: {warning}" for warning in selection.warnings]
    return ["", f"Chosen: {selection.chosen}{on} ({selection.source})", *warnings]
