"""Recognises the folders of a Hugging Face cache that are no checkpoint, and says which folder is meant.

`models--OWNER--NAME` holds `blobs/HASH`, `refs/main` with a revision, and `snapshots/REVISION` whose files are relative
links to the blobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def link_fault(path: Path) -> str | None:
    """Return what is wrong with a link into the blobs of a Hugging Face cache that are not here, None without one."""
    if path.exists() or not path.is_symlink():
        return None
    target = path.readlink()
    if target.parent.name != "blobs":
        return None
    outer = target.parent.parent.name
    # A cache's own links are relative, ../../blobs/HASH, and tell no name.
    whole = outer if outer.startswith("models--") else "models--OWNER--NAME"
    return (
        f"{path.parent}: is a snapshot of a Hugging Face cache whose blobs are not here ({path.name} leads to "
        f"{target}); mount the whole {whole} folder, with blobs and snapshots, and name its "
        f"snapshots/{path.parent.name}, or copy the snapshot's files with `cp -rL`"
    )


def refuse_hub_cache(folder: Path) -> None:
    """Refuse what is of a Hugging Face cache and no whole snapshot, naming the snapshot that is wanted.

    Raises CheckError for a snapshot whose blobs are missing, ConfigurationError for an outer folder.
    """
    config = folder / "config.json"
    if fault := link_fault(config):
        raise CheckError(fault)
    if config.exists():
        return
    for outer, what in ((folder, "folder"), (folder / "hub", "hub folder")):
        models = sorted(path for path in outer.glob("models--*") if path.is_dir())
        if models:
            snapshots = [snapshot for model in models for snapshot in _snapshots(model)]
            names = _some(snapshots or models)
            raise ConfigurationError(f"{folder}: is the outer {what} of a Hugging Face cache; name a snapshot: {names}")
    if (folder / "snapshots").is_dir():
        found = _snapshots(folder)
        if not found:
            raise ConfigurationError(
                f"{folder}: is a model's folder in a Hugging Face cache and holds no snapshot; finish the download"
            )
        blobs = "" if (folder / "blobs").is_dir() else " (its blobs folder is missing; mount it as well)"
        raise ConfigurationError(
            f"{folder}: is the outer folder of a model in a Hugging Face cache; name its snapshot{blobs}: "
            f"{_some(found)}"
        )
    if folder.name in ("snapshots", "blobs"):
        found = _snapshots(folder.parent)
        if found:
            raise ConfigurationError(
                f"{folder}: is the {folder.name} folder of a model in a Hugging Face cache; name a snapshot: "
                f"{_some(found)}"
            )


def _snapshots(model: Path) -> list[Path]:
    """Return the snapshots of a model in a Hugging Face cache, the one that `refs/main` names first."""
    try:
        main = (model / "refs" / "main").read_text("utf-8", "replace").strip()
    except OSError:
        main = ""
    found = [path for path in model.glob("snapshots/*") if path.is_dir()]
    return sorted(found, key=lambda path: (path.name != main, path.name))


def _some(paths: list[Path]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(map(str, paths[:3])) + more
