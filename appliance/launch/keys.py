"""The API's key: found by its setting, shown by nothing, handed to the engine through its environment alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ConfigurationError
from appliance.launch import settings
from appliance.launch.plan import Sourced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.request import Request

VARIABLE = "VLLM_API_KEY"
"""Where vLLM looks for the key; on its command line every user of the machine would see it."""


def engine_secrets(asked: Request) -> dict[str, str]:
    """Return what is added to the engine's environment beside the plan, and must not be written anywhere.

    Raises ConfigurationError for a key that cannot be read.
    """
    key = api_key(asked.settle().settings, asked.environ)
    return {VARIABLE: key.value} if key else {}


def api_key(given: Mapping[str, Sourced], environ: Mapping[str, str]) -> Sourced | None:
    """Return the key with its source: api_key, else api_key_file, else vLLM's own variable, else None.

    Raises ConfigurationError, without the key in it, when both settings are there or the file holds no key.
    """
    key, file = given.get("api_key"), given.get("api_key_file")
    if key is not None and file is not None:
        raise ConfigurationError(
            f"api_key ({key.source}) and api_key_file ({file.source}) are both set; keep one of them"
        )
    if key is not None:
        return key
    if file is not None:
        return Sourced(_read(Path(file.value), file.source), file.source)
    if environ.get(VARIABLE):
        source = f"environment {VARIABLE}"
        parsed = settings.parse(settings.SETTINGS["api_key"], environ[VARIABLE], source, Path("/"))
        return Sourced(parsed, source)
    return None


def _read(path: Path, source: str) -> str:
    where = f"{source}: api_key_file {path}"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where}: is not text in UTF-8") from None
    if not lines or not lines[0].strip():
        raise ConfigurationError(f"{where}: holds no key on its first line")
    key = lines[0].strip()
    if not key.isprintable():
        raise ConfigurationError(f"{where}: the key has characters that no HTTP header can carry")
    return key
