"""The profiles that are shipped, and reading of any profile file."""

from __future__ import annotations

from pathlib import Path

from appliance import data_file
from appliance.acceleration.routes import ROUTES
from appliance.errors import ConfigurationError, nearest
from appliance.paths import PROFILES
from appliance.profiles.schema import Profile


def names() -> tuple[str, ...]:
    """The names of the shipped profiles, in alphabetical order."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load(name: str) -> Profile:
    """Return the shipped profile called `name`, or the one in the YAML file that `name` is a path to.

    Raises ConfigurationError: an unknown profile with the nearest name, a bad file with its key, value and want.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return read(Path(name))
    known = names()
    if name not in known:
        raise ConfigurationError(
            f'no profile "{name}"{nearest(name, known)} (shipped: {", ".join(known)}; a file of yours is given by '
            "its path)"
        )
    profile = read(PROFILES / f"{name}.yaml")
    if profile.name != name:
        raise ConfigurationError(f'{PROFILES / name}.yaml: name is "{profile.name}"; wanted the file\'s name, "{name}"')
    return profile


def load_all() -> tuple[Profile, ...]:
    """Return every shipped profile, the most preferred first."""
    return tuple(sorted(map(load, names()), key=lambda profile: (profile.rank, profile.name)))


def read(path: Path) -> Profile:
    """Return the profile in `path`. Raises ConfigurationError in one line for whatever is wrong with it."""
    profile = data_file.read(path, Profile, "a profile")
    for route in profile.expected_acceleration:
        if route not in ROUTES:
            raise ConfigurationError(f'{path}: expected_acceleration has no route "{route}"{nearest(route, ROUTES)}')
    return profile
