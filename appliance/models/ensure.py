"""Makes a planned checkpoint present and proven in its folder, whichever way it comes there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import CheckError, ConfigurationError
from appliance.models import place, serving
from appliance.models.checkpoint import inspect
from appliance.models.verify import Verification, remember, verify, write_source

if TYPE_CHECKING:
    from appliance.launch.plan import PlannedModel
    from appliance.models.progress import Progress


def ensure(
    model: PlannedModel,
    *,
    offline: bool,
    progress: Progress,
    state_dir: Path | None = None,
    token: str | None = None,
) -> Verification:
    """Fetch or convert `model` unless it is there, then prove it; what was proven is remembered.

    A folder gets its name only when all of it is there. `state_dir` takes the memory of a read-only folder; `token`
    is Hugging Face's.
    Raises CheckError or ConfigurationError, one line saying what to do.
    """
    folder = Path(model.folder)
    if model.origin != "folder" and not place.is_there(folder):
        if model.origin == "download" and offline:
            pin = model.source.replace("profile ", "--profile ") if model.source.startswith("profile ") else ""
            raise CheckError(
                f"{model.repository} is not in {folder} and offline was asked for; fetch it where there is a network "
                f"(`appliance models fetch {pin} --models-dir DIR`) and copy DIR/{folder.name} there"
            )
        with place.alone(folder, progress):
            # The process that was waited for may have put it there.
            if not place.is_there(folder):
                _prepare(model, folder, progress, token)
    return prove(model, progress=progress, state_dir=state_dir)


def prove(
    model: PlannedModel, *, progress: Progress, state_dir: Path | None = None, always: bool = False
) -> Verification:
    """Check that the checkpoint in `model.folder` is whole, of the planned kind, fit to be served, and has its hashes.

    Hashes are taken from memory for files that did not change, unless `always`. Raises as `ensure` does.
    """
    folder = Path(model.folder)
    if not folder.is_dir():
        raise CheckError(f"{folder} is not there; `appliance models fetch` brings it, or name a folder with --model")
    found = inspect(folder)
    if found.kind != model.kind:
        raise ConfigurationError(
            f"the checkpoint in {folder} is {found.kind}, the profile wants {model.kind}; "
            "choose another profile or another checkpoint"
        )
    serving.check(folder, model.needs)
    return verify(folder, model.files, progress=progress, state_dir=state_dir, always=always)


def _prepare(model: PlannedModel, folder: Path, progress: Progress, token: str | None) -> None:
    if model.origin == "package":
        from appliance.models.package import convert

        convert(model.repository, folder, progress)
        return
    if model.revision is None:
        raise ConfigurationError(f"{model.source}: {model.repository} has no revision; give the full commit id")
    from appliance.models import hub

    partial = place.partial(folder)
    hashes = hub.download(model.repository, model.revision, model.files, partial, folder, progress, token)
    try:
        write_source(partial, "huggingface", model.repository, model.revision, hashes)
        remember(partial, hashes, None)
        place.put(partial, folder)
    except OSError as error:
        raise CheckError(f"cannot write {partial} ({error.strerror}); free space there and run this again") from error
