"""What predicting a step needs besides kernels and profile: config/predictions.yaml, each figure with its source."""

from __future__ import annotations

from functools import cache

import yaml
from pydantic import ValidationError

from appliance.errors import ConfigurationError
from appliance.models.source import Strict
from appliance.paths import CONFIG
from appliance.profiles.schema import Figure

FILE = CONFIG / "predictions.yaml"


class Data(Strict):
    """The file."""

    peer_bandwidth: Figure
    collective_latency: Figure
    nvfp4_weight: Figure
    draft_gathered: Figure


@cache
def load() -> Data:
    """Return the file's content. Raises ConfigurationError when it is missing or damaged."""
    try:
        return Data.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"{FILE}: cannot be read ({error.strerror}); it comes with the appliance") from error
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigurationError(f"{FILE}: {str(error).splitlines()[0]}; it comes with the appliance") from error
