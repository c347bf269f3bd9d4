"""What the sidecar was told: where to read, whom to ask, who may write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Secrets are in no representation of it.

    `cache_dir` and `engine_url` are None where the plan's count. Without a `token` the writing endpoints are off.
    """

    run_dir: Path
    cache_dir: Path | None = None
    engine_url: str | None = None
    engine_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


def check_url(url: str, source: str) -> str:
    """Return `url`, the engine's base address. Raises ConfigurationError where it is none."""
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and split.hostname and (split.port or 1) > 0
    except ValueError:
        valid = False
    if "@" in url:
        # Not shown: it may hold a password.
        raise ConfigurationError(
            f"{source}: engine_url holds a login; wanted http://HOST:PORT, and api_key_file for a key"
        )
    if not valid or split.query or split.fragment:
        raise ConfigurationError(f'{source}: engine_url is "{url}"; wanted http://HOST:PORT')
    return url.rstrip("/")
