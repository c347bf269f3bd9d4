"""The secrets: the API's key, the sidecar's and Hugging Face's tokens. Found by their settings, shown by nothing.

The key is handed to the engine through its environment alone; Hugging Face's token goes to the download alone.
"""

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

HUB_VARIABLE = "HF_TOKEN"
"""Where Hugging Face's own tools look for the token."""

SHORTEST_TOKEN = 16
"""Characters; a shorter one can be guessed by whoever reaches the port."""


def engine_secrets(asked: Request) -> dict[str, str]:
    """Return what is added to the engine's environment beside the plan, and must not be written anywhere.

    Raises ConfigurationError for a key that cannot be read.
    """
    key = api_key(asked.settle().settings, asked.environ)
    return {VARIABLE: key.value} if key else {}


def sidecar_secrets(asked: Request) -> dict[str, str]:
    """Return what is added to the environment of the sidecar that the entrypoint starts, and written nowhere.

    The token comes from any layer and arrives by one variable; the sidecar must not find it a second time. Raises
    ConfigurationError for a token that cannot be read.
    """
    token = sidecar_token(asked.settle().settings)
    if token is None:
        return {}
    setting = settings.SETTINGS["sidecar_token"].variable
    return {setting: token.value, f"{setting}_FILE": "", settings.SETTINGS["config"].variable: ""}


def hub_secrets(asked: Request) -> dict[str, str]:
    """Return Hugging Face's token under its variable, for downloads and so that no log shows it; written nowhere.

    Raises ConfigurationError for a token that cannot be read.
    """
    token = hub_token(asked.settle().settings, asked.environ)
    return {HUB_VARIABLE: token.value} if token else {}


def api_key(given: Mapping[str, Sourced], environ: Mapping[str, str]) -> Sourced | None:
    """Return the key with its source: api_key, else api_key_file, else vLLM's own variable, else None.

    Raises ConfigurationError, without the key in it, when both settings are there or the file holds no key.
    """
    key = _secret("api_key", given)
    if key is not None:
        return key
    if environ.get(VARIABLE):
        source = f"environment {VARIABLE}"
        parsed = settings.parse(settings.SETTINGS["api_key"], environ[VARIABLE], source, Path("/"))
        return Sourced(parsed, source)
    return None


def sidecar_token(given: Mapping[str, Sourced]) -> Sourced | None:
    """Return the sidecar's token with its source: sidecar_token, else sidecar_token_file, else None.

    Raises ConfigurationError, without the token in it, when both are there, the file holds none, or it is too short.
    """
    token = _secret("sidecar_token", given)
    if token is not None and len(token.value) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{token.source}: the sidecar's token has {len(token.value)} characters; wanted at least {SHORTEST_TOKEN} "
            "(`openssl rand -hex 32` makes one)"
        )
    return token


def hub_token(given: Mapping[str, Sourced], environ: Mapping[str, str]) -> Sourced | None:
    """Return Hugging Face's token with its source: hf_token_file, else HF_TOKEN, else None.

    Raises ConfigurationError, without the token in it, when the file cannot be read or holds none.
    """
    token = _secret("hf_token", given)
    if token is None and (value := environ.get(HUB_VARIABLE, "").strip()):
        token = Sourced(value, f"environment {HUB_VARIABLE}")
    return token


def _secret(name: str, given: Mapping[str, Sourced]) -> Sourced | None:
    """Return what the setting `name` gives, or the first line of the file that `name`_file gives."""
    secret, file = given.get(name), given.get(f"{name}_file")
    if secret is not None and file is not None:
        raise ConfigurationError(
            f"{name} ({secret.source}) and {name}_file ({file.source}) are both set; keep one of them"
        )
    if file is not None:
        return Sourced(_read(name, Path(file.value), file.source), file.source)
    return secret


def _read(name: str, path: Path, source: str) -> str:
    where = f"{source}: {name}_file {path}"
    what = "token" if name.endswith("token") else "key"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where}: is not text in UTF-8") from None
    if not lines or not lines[0].strip():
        raise ConfigurationError(f"{where}: holds no {what} on its first line")
    key = lines[0].strip()
    if not key.isprintable():
        raise ConfigurationError(f"{where}: the {what} has characters that no HTTP header can carry")
    return key
