"""`appliance cache`: generations of compiled code, their key, their archives, and the Docker volumes that hold them."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.errors import CheckError, ConfigurationError
from appliance.launch import settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from appliance.cache.store import Generation, Store

SUMMARY = "List, prove, prune and carry what was compiled, so that the next start need not compile it."

_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(_ACTIONS))
    for action, (text, _) in _ACTIONS.items():
        own = actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        if action == "volumes":
            _configure_volumes(own)
            continue
        own.add_argument("--json", action="store_true", help="print JSON, and show no progress")
        if action == "key":
            settings.add_options(own)
            continue
        own.add_argument("--cache-dir", metavar="FOLDER", help="folder of the compile cache (default: the setting's)")
        if action == "verify":
            own.add_argument("key", nargs="*", help="generations, by the beginning of their key (default: all sealed)")
        elif action in ("seal", "remove", "export"):
            own.add_argument("key", help="generation, by the beginning of its key")
        if action in ("export", "import"):
            own.add_argument("file", type=Path, help="archive; packed when its name ends in .gz or .tgz")
        if action == "prune":
            own.add_argument("--max-age", metavar="AGE", help="remove what was not used for so long: 12h, 30d, 8w")
            own.add_argument(
                "--max-size", metavar="SIZE", help="keep at most so much, the last used first: 20GB, 10GiB"
            )
            own.add_argument(
                "--keep", action="append", default=[], metavar="KEY", help="never this one; may be repeated"
            )
            own.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")


def _configure_volumes(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="list|create|inspect|copy|remove")
    for kind, text in _VOLUMES.items():
        own = kinds.add_parser(kind, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        own.add_argument("--json", action="store_true", help="print JSON")
        if kind != "list":
            own.add_argument("name", help="the volume")
        if kind == "create":
            own.add_argument(
                "--label", action="append", default=[], metavar="NAME=VALUE", help="what is in it; may be repeated"
            )
        if kind == "copy":
            own.add_argument("target", help="the new volume")
            own.add_argument(
                "--image", required=True, help="image that copies, which is on this machine: the sidecar's"
            )


def run(arguments: argparse.Namespace) -> int:
    """Do the action. Returns 0, or 1 when a generation is not as it was sealed; all else is an error of one line."""
    return _ACTIONS[arguments.action][1](arguments)


def _list(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    found = store.generations()
    total = sum(generation.size_bytes for generation in found)
    record = {
        "schema": 1,
        "folder": str(store.folder),
        "size_bytes": total,
        "generations": [asdict(generation) for generation in found],
    }
    _tell(arguments, record, _table(store, found, total))
    return 0


def _key(arguments: argparse.Namespace) -> int:
    from appliance.cache.facts import gather
    from appliance.cache.key import PARTS, key_of, parts_of, relevant
    from appliance.launch import request, resolve
    from appliance.rundir.plan import PlanRecord

    resolved = resolve.resolve(request.from_arguments(arguments, os.environ, Path.cwd()))
    plan = PlanRecord.from_json(resolved.to_json())
    parts = parts_of(plan, gather(plan, os.environ), os.environ)
    inputs = dict(relevant(plan, os.environ))
    key = key_of(parts)
    width = max(map(len, PARTS))
    lines = [key, "", *(f"  {name:<{width}}  {parts[name]}" for name in PARTS), "", "The plan's part is made of"]
    lines += [f"  {name} {json.dumps(value, ensure_ascii=False)}" for name, value in inputs.items()]
    _tell(arguments, {"schema": 1, "key": key, "parts": parts, "plan_inputs": inputs}, lines)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    if arguments.key:
        keys = [_full(store, key) for key in arguments.key]
    else:
        keys = [
            found.key for found in store.generations() if found.state == "sealed" or found.sealed_at or found.problem
        ]
    results = {}
    for key in keys:
        with _progress(arguments, f"SHA-256 of {key[:12]}", store.find(key).size_bytes) as seen:
            results[key] = store.verify(key, seen)
    lines = []
    for key, problems in results.items():
        lines.append(f"{key}: {'as it was sealed' if not problems else f'{len(problems)} problems'}")
        lines += [f"  {problem}" for problem in problems]
    record = {
        "schema": 1,
        "generations": [
            {"key": key, "problems": [asdict(problem) for problem in problems]} for key, problems in results.items()
        ],
    }
    _tell(arguments, record, lines or [f"nothing is sealed in {store.folder}"])
    return 1 if any(results.values()) else 0


def _seal(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    key = _full(store, arguments.key)
    sealed = store.seal(key)
    if not sealed.sealed:
        raise CheckError(sealed.text)
    generation = store.find(key)
    line = f"{key}: sealed, {generation.files} files, {_size(generation.size_bytes)}; without greedy tokens to compare"
    _tell(arguments, {"schema": 1, "generation": asdict(generation)}, [line])
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    store = _store(arguments)
    removed = store.remove(_full(store, arguments.key))
    line = f"{removed.key}: removed, {_size(removed.size_bytes)}"
    _tell(arguments, {"schema": 1, "removed": [asdict(removed)]}, [line])
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    if arguments.max_age is None and arguments.max_size is None:
        raise ConfigurationError("prune removes nothing without --max-age or --max-size; give one or both")
    store = _store(arguments)
    removed = store.prune(
        None
        if arguments.max_age is None
        else _quantity(arguments.max_age, "--max-age", _AGES, "a time like 12h or 30d"),
        None if arguments.max_size is None else _quantity(arguments.max_size, "--max-size", _SIZES, "a size like 20GB"),
        [_full(store, key) for key in arguments.keep],
        dry_run=arguments.dry_run,
    )
    word = "would be removed" if arguments.dry_run else "removed"
    lines = [f"{one.key}: {word} ({_WHY[one.why]}), {_size(one.size_bytes)}" for one in removed]
    record = {"schema": 1, "dry_run": arguments.dry_run, "removed": [asdict(one) for one in removed]}
    _tell(arguments, record, lines or ["nothing to remove"])
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from appliance.cache import archive

    store = _store(arguments)
    key = _full(store, arguments.key)
    with _progress(arguments, f"export of {key[:12]}", store.find(key).size_bytes) as seen:
        done = archive.export(store, key, arguments.file, seen)
    line = f"{key}: {done.files} files, {_size(done.size_bytes)} in {arguments.file}"
    _tell(arguments, {"schema": 1, "file": str(arguments.file), **asdict(done)}, [line])
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from appliance.cache import archive

    store = _store(arguments)
    with _progress(arguments, f"import of {arguments.file.name}", None) as seen:
        done = archive.import_(store, arguments.file, seen)
    how = (
        "there already, with the same content"
        if done.already_there
        else f"{done.files} files, {_size(done.size_bytes)}"
    )
    _tell(arguments, {"schema": 1, "file": str(arguments.file), **asdict(done)}, [f"{done.key}: {how}"])
    return 0


def _volumes(arguments: argparse.Namespace) -> int:
    from appliance.cache import volumes

    labels = dict(_label(text) for text in getattr(arguments, "label", []))
    docker = volumes.connect()
    if arguments.kind == "list":
        found = docker.list()
    elif arguments.kind == "create":
        found = [docker.create(arguments.name, labels)]
    elif arguments.kind == "inspect":
        found = [docker.inspect(arguments.name)]
    elif arguments.kind == "copy":
        found = [docker.copy(arguments.name, arguments.target, arguments.image)]
    else:
        docker.remove(arguments.name)
        _tell(arguments, {"schema": 1, "removed": arguments.name}, [f"{arguments.name}: removed"])
        return 0
    lines = []
    for volume in found:
        said = [f"{name}={value}" for name, value in sorted(volume.labels.items())]
        users = f"used by {', '.join(volume.used_by)}" if volume.used_by else "not in use"
        lines.append("  ".join([volume.name, volume.driver, volume.created_at, users, *said]))
    record = {"schema": 1, "volumes": [asdict(volume) for volume in found]}
    _tell(arguments, record, lines or ["no volume of the appliance"])
    return 0


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f'--label is "{text}"; wanted NAME=VALUE')
    return name, value


_ACTIONS: dict[str, tuple[str, Callable[[argparse.Namespace], int]]] = {
    "list": ("list the generations, the last used first", _list),
    "key": ("print the key that `appliance serve` would use with the same settings, and what it is made of", _key),
    "verify": ("hash every sealed file again; exit status 1 when one is not as it was", _verify),
    "seal": ("seal a generation that an engine got ready on and could not seal, as on a full disk", _seal),
    "remove": ("remove a generation that is not in use", _remove),
    "prune": ("remove generations by age and total size, never one in use", _prune),
    "export": ("write a sealed generation to one file, for a site without a network", _export),
    "import": ("bring an exported generation in, verified and whole or not at all", _import),
    "volumes": ("list, create, inspect, copy and remove the Docker volumes that hold caches", _volumes),
}

_VOLUMES = {
    "list": "list the appliance's volumes",
    "create": "create a labelled volume",
    "inspect": "show one volume",
    "copy": "copy a volume that no running container mounts into a new one",
    "remove": "remove a volume that no container mounts",
}

_WHY = {"asked": "asked for", "age": "not used for too long", "size": "too much in all", "left_over": "left half done"}


def _store(arguments: argparse.Namespace) -> Store:
    from appliance.cache.store import Store
    from appliance.launch import layers
    from appliance.paths import default_state_dir

    given = {} if arguments.cache_dir is None else {"cache_dir": arguments.cache_dir}
    found = layers.settle(given, (), os.environ, Path.cwd()).settings
    if "cache_dir" in found:
        return Store(Path(found["cache_dir"].value))
    return Store(Path(found["state_dir"].value if "state_dir" in found else default_state_dir()) / "cache")


def _full(store: Store, beginning: str) -> str:
    """Return the one key that begins so. Raises CheckError for none, ConfigurationError for several."""
    # Nothing begins every key: an unset variable of a script must not remove the only generation.
    keys = [found.key for found in store.generations() if beginning and found.key.startswith(beginning)]
    if len(keys) > 1:
        raise ConfigurationError(f'"{beginning}" begins {len(keys)} keys; give more of it')
    return keys[0] if keys else store.find(beginning).key


def _table(store: Store, found: list[Generation], total: int) -> Iterator[str]:
    if not found:
        yield f"nothing in {store.folder}"
        return
    yield f"{'KEY':<32}  {'STATE':<8}  {'SIZE':>8}  {'FILES':>6}  USED"
    for one in found:
        used = "never" if one.used_at is None else _ago(one.used_at)
        state = "in use" if one.in_use else ""
        yield f"{one.key:<32}  {one.state:<8}  {_size(one.size_bytes):>8}  {one.files:>6}  {used:<12}  {state}".rstrip()
        if one.parts:
            yield "  " + ", ".join(one.parts[name] for name in ("image", "vllm", "gpu") if name in one.parts)
        if one.problem:
            yield f"  {one.problem}"
    yield f"{_size(total)} in {store.folder}"


def _ago(when: float) -> str:
    age = max(0.0, time.time() - when)
    for name, seconds in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {name} ago"
    return "just now"


def _size(amount: int) -> str:
    from appliance.models.progress import in_units

    return in_units(amount, "bytes")


def _quantity(text: str, option: str, units: dict[str, int], wanted: str) -> int:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    unit = match[2].removesuffix("B") if match and units is _SIZES else match[2] if match else ""
    # 20 bytes is what nobody means, and would empty the cache.
    if match is None or unit not in units or (not match[2] and float(match[1]) > 0):
        raise ConfigurationError(f'{option} is "{text}"; wanted {wanted}')
    return int(float(match[1]) * units[unit])


@contextmanager
def _progress(arguments: argparse.Namespace, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    from appliance.models.progress import for_stream

    with for_stream(silent=arguments.json).task(title, total=total) as task:
        yield task.advance


def _tell(arguments: argparse.Namespace, record: dict[str, Any], lines: Iterator[str] | list[str]) -> None:
    print(json.dumps(record, indent=2, ensure_ascii=False) if arguments.json else "\n".join(lines))
