"""The appliance's settings: one table, and what makes a written value into one of the right kind.

A setting `state_dir` is `--state-dir` on the command line, `APPLIANCE_STATE_DIR` in the environment and the key
`state_dir` (or `state-dir`) in the file that `--config` names.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from appliance.acceleration import platforms
from appliance.errors import ConfigurationError, nearest
from appliance.launch.arguments import shown

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "APPLIANCE_"

Kind = Literal["text", "folder", "file", "integer", "port", "boolean", "choice"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class Setting:
    """One setting. `derived` says in words what stands in for a default that depends on something else.

    A `secret` is never shown, and never written to a plan, a log or a file.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    derived: str = ""
    choices: tuple[str, ...] = ()
    secret: bool = False

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def wanted(self) -> str:
        """What a value must look like, in words."""
        return {
            "text": "text on one line",
            "folder": "a folder",
            "file": "a file",
            "integer": "a whole number, 0 or more",
            "port": "a port from 1 to 65535",
            "boolean": "true or false",
            "choice": " or ".join(self.choices),
        }[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return the row of the table of all settings."""
        return {
            "name": self.name,
            "option": self.option,
            "variable": self.variable,
            "kind": self.kind,
            "default": self.default,
            "derived": self.derived,
            "choices": list(self.choices),
            "secret": self.secret,
            "help": self.help,
        }


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("config", "file", "YAML file of settings; vLLM arguments go under its key `engine`"),
        Setting("profile", "text", "pins a profile by its name or its file's path", derived="the best that fits"),
        Setting("force", "boolean", "start a pinned profile although it does not fit", default=False),
        Setting("model", "folder", "folder of the checkpoint, used as it is", derived="the profile's, downloaded"),
        Setting("draft", "folder", "folder of the speculative draft", derived="the profile's, downloaded"),
        Setting("served_model_name", "text", "name of the model in the API", derived="the profile's"),
        Setting("host", "text", "address on which the engine listens", default="127.0.0.1"),
        Setting("port", "port", "port on which the engine listens", default=8000),
        Setting(
            "sidecar",
            "boolean",
            "start health and metadata beside the engine, not in a container of its own",
            default=True,
        ),
        Setting("sidecar_host", "text", "address on which health and metadata are served", derived="that of host"),
        Setting("sidecar_port", "port", "port on which health and metadata are served", default=8001),
        Setting("api_key", "text", "key that the API asks for; api_key_file keeps it out of `ps`", secret=True),
        Setting("api_key_file", "file", "file that holds the API's key on its first line"),
        Setting("sidecar_token", "text", "token that the sidecar's writing endpoints ask for", secret=True),
        Setting("sidecar_token_file", "file", "file that holds the sidecar's token on its first line"),
        Setting("hf_token_file", "file", "file with the Hugging Face token on its first line, for downloads"),
        Setting("engine_url", "text", "where the sidecar asks the engine", derived="host and port of the plan"),
        Setting("state_dir", "folder", "the one folder that is written to", derived=".appliance beside the sources"),
        Setting("run_dir", "folder", "folder of plan, phase and heartbeat", derived="STATE_DIR/run"),
        Setting("models_dir", "folder", "folder of downloaded models", derived="STATE_DIR/models"),
        Setting("cache_dir", "folder", "folder of the compile cache", derived="STATE_DIR/cache"),
        Setting("cache_days", "integer", "days after which compiled code that no start used goes; 0 never", default=90),
        Setting("cache_gigabytes", "integer", "GB of compiled code before the oldest goes; 0 any", default=50),
        Setting("offline", "boolean", "never try the network", default=False),
        Setting("log_format", "choice", "form of the log", default="plain", choices=("plain", "json")),
        Setting(
            "require_acceleration",
            "boolean",
            "refuse to start when a fast path that the profile expects is off",
            default=False,
        ),
        Setting(
            "vllm_platform",
            "choice",
            "rehearse a profile for V100s without one: sm70 on another NVIDIA GPU, sm70-reference on the CPU engine",
            default=platforms.AUTO,
            choices=platforms.NAMES,
        ),
        Setting(
            "on_engine_exit",
            "choice",
            "what follows when the engine ends by itself",
            default="restart",
            choices=("restart", "end"),
        ),
        Setting("max_restarts", "integer", "restarts in a row, none of which became ready, before the end", default=3),
        Setting("start_budget", "integer", "seconds that a start may take", derived="the profile's"),
        Setting("progress_budget", "integer", "seconds that a start may go without progress", derived="the profile's"),
        Setting("stall_grace", "integer", "seconds without a step that count as a stall", derived="the profile's"),
        Setting("drain", "integer", "seconds that open requests get at the end", derived="the profile's"),
        Setting("topology", "file", "recorded machine, or text of `nvidia-smi topo -m`", derived="this machine"),
        Setting("smi_xml", "file", "output of `nvidia-smi -q -x` that goes with the text of --topology"),
    )
}

HEALTH = {"start_budget": "start", "progress_budget": "progress", "stall_grace": "stall_grace", "drain": "drain"}
"""The settings that override one of the profile's health budgets."""


def find(name: str, where: str) -> Setting:
    """Return the setting called `name` (dashes count as underscores), written in `where`.

    Raises ConfigurationError with the nearest name.
    """
    setting = SETTINGS.get(name.replace("-", "_"))
    if setting is None:
        raise ConfigurationError(
            f'{where}: no setting "{name}"{nearest(name.replace("-", "_"), SETTINGS) or ";"}'
            " `appliance plan --settings` lists them"
        )
    return setting


def parse(setting: Setting, raw: object, source: str, base: Path) -> Any:  # noqa: ANN401 - of the setting's own kind
    """Return `raw` as a value of the setting's kind; paths become absolute, seen from `base`.

    `raw` is text, or what YAML made of it. Raises ConfigurationError naming `source`, the value and what was wanted.
    """
    value = _convert(setting, raw, base)
    if value is None:
        seen = "" if setting.secret else f" is {shown(raw)}"
        raise ConfigurationError(f"{source}: {setting.name}{seen}; wanted {setting.wanted}")
    return value


def _convert(setting: Setting, raw: object, base: Path) -> Any:  # noqa: ANN401
    if setting.kind == "boolean":
        word = str(raw).lower()
        return True if word in _TRUE else False if word in _FALSE else None
    if setting.kind in ("integer", "port"):
        if isinstance(raw, bool) or not str(raw).isascii() or not str(raw).isdigit():
            return None
        number = int(str(raw))
        return number if setting.kind == "integer" or 1 <= number <= 65535 else None
    if not isinstance(raw, str) or not raw or not raw.isprintable():
        return None
    if setting.kind == "choice":
        return raw if raw in setting.choices else None
    if setting.kind in ("folder", "file"):
        return os.path.abspath(base / raw)  # noqa: PTH100 - Path.resolve would follow links, which may be swapped later
    return raw


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` an option for each setting, and everything after `--` as `vllm_options`."""
    group = parser.add_argument_group(
        "settings", "Each is also a variable APPLIANCE_NAME and a key in the file of --config; the command line wins."
    )
    for setting in SETTINGS.values():
        standard = setting.derived if setting.default is None else str(setting.default).lower()
        text = (setting.help + (f" (default: {standard})" if standard else "")).replace("%", "%%")
        if setting.kind == "boolean":
            group.add_argument(
                setting.option, dest=_dest(setting), action=argparse.BooleanOptionalAction, default=None, help=text
            )
        else:
            metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else setting.kind.upper()
            group.add_argument(setting.option, dest=_dest(setting), default=None, metavar=metavar, help=text)
    # REMAINDER keeps "--" in front of what it takes, and nothing after it is read by argparse.
    parser.add_argument(
        "vllm_options", nargs=argparse.REMAINDER, metavar="-- VLLM OPTIONS", help="go to vLLM as they are, and win"
    )


def collect(args: argparse.Namespace) -> dict[str, str]:
    """Return the settings that were given on the command line, as text by name."""
    given = {name: getattr(args, _dest(setting), None) for name, setting in SETTINGS.items()}
    return {
        name: value if isinstance(value, str) else str(value).lower()
        for name, value in given.items()
        if value is not None
    }


def passthrough(args: argparse.Namespace) -> list[str]:
    """Return what followed `--`. Raises ConfigurationError when a word stands before it."""
    words: list[str] = args.vllm_options
    if words and words[0] != "--":
        raise ConfigurationError(f'"{words[0]}" is not expected here; options for vLLM go after --')
    return words[1:]


def _dest(setting: Setting) -> str:
    return "setting_" + setting.name
