"""`appliance models`: bring a profile's checkpoints, or read them again and hold them against their hashes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.launch import settings

if TYPE_CHECKING:
    import argparse

    from appliance.launch.plan import Plan, PlannedModel
    from appliance.models.verify import Verification

SUMMARY = "Fetch a profile's model and draft, or verify them. Without --profile, the profile that fits this machine."

_ACTIONS = {
    "fetch": "download or convert what is not there yet, then prove it; a download that broke off is continued",
    "verify": "read every file again and hold it against its SHA-256",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(_ACTIONS))
    for action, text in _ACTIONS.items():
        own = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        own.add_argument("--json", action="store_true", help="print JSON, and show no progress")
        settings.add_options(own)


def run(arguments: argparse.Namespace) -> int:
    """Do the action for the model and its draft. Returns 0; whatever is wrong is an error of one line."""
    from appliance.launch import keys, request, resolve
    from appliance.models import ensure, progress

    asked = request.from_arguments(arguments, os.environ, Path.cwd())
    # Nothing is started here, so a model may be fetched for another machine than this one.
    plan = resolve.resolve(replace(asked, options={**asked.options, "force": "true"}))
    shown = progress.for_stream(silent=arguments.json)
    state_dir = Path(plan.setting("state_dir"))
    token = keys.hub_secrets(asked).get(keys.HUB_VARIABLE)
    proven: list[tuple[str, PlannedModel, Verification]] = []
    for role, model in (("model", plan.model), ("draft", plan.draft)):
        if model is None:
            continue
        if arguments.action == "fetch":
            offline = bool(plan.setting("offline"))
            found = ensure.ensure(model, offline=offline, progress=shown, state_dir=state_dir, token=token)
        else:
            found = ensure.prove(model, progress=shown, state_dir=state_dir, always=True)
        proven.append((role, model, found))
        if not arguments.json:
            print(f"{role}: {model.repository or 'yours'} in {model.folder}: {found.summary}")
    if arguments.json:
        print(json.dumps(_to_json(plan, proven), indent=2, ensure_ascii=False))
    return 0


def _to_json(plan: Plan, proven: list[tuple[str, PlannedModel, Verification]]) -> dict[str, object]:
    models = {
        role: {
            "repository": model.repository,
            "revision": model.revision,
            "origin": model.origin,
            "kind": model.kind,
            **asdict(found),
            "summary": found.summary,
        }
        for role, model, found in proven
    }
    return {"schema": 1, "profile": plan.profile, "models": models}
