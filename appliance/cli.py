"""The command `appliance`: finds the verb, imports only that verb's module, and turns errors into one line.

A verb's module has `SUMMARY: str`, `configure(parser) -> None` and `run(arguments) -> int`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from appliance import __version__
from appliance.errors import ApplianceError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

# Looking for pydantic plugins reads the metadata of every installed package, and none is wanted.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

VERBS = {
    "topology": "the GPUs of this machine and how they are wired",
    "profiles": "list, show, or select a profile and say why the others do not fit",
    "plan": "what would be started: every value with its source, the command line, the memory",
    "serve": "start the engine and the sidecar, and stay until they end",
    "doctor": "check this machine and say what to do",
    "models": "fetch or verify a model and its draft",
    "cache": "what was compiled: list, prove, prune, export, import",
    "probe": "startup, live or ready, as the exec probes answer it",
    "bench": "measure the engine, predict it, or compare a result with a reference",
    "sidecar": "the health and metadata service alone",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest option."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2, as argparse does, without the usage in front."""
        kind, _, words = message.partition(": ")
        if kind == "unrecognized arguments":
            word = words.split()[0].partition("=")[0]
            message = f'"{word}" is no option{nearest(word, self._option_string_actions)}'
            if any(action.nargs == argparse.REMAINDER for action in self._actions):
                message = f"{_sentence(message)} options for vLLM go after --"
        self.exit(2, f"appliance: {_sentence(message)} `{self.prog} --help` lists the options\n")


def _sentence(text: str) -> str:
    """`text` with what separates it from the advice that follows."""
    return text if text.endswith("?") else text + ";"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0 done, 1 a check failed, 2 bad usage or configuration."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"appliance {__version__}")
        return 0
    verb = words[0]
    try:
        if verb not in VERBS:
            hint = nearest(verb, VERBS) or ";"
            print(f'appliance: no verb "{verb}"{hint} `appliance --help` lists them', file=sys.stderr)
            return 2
        module = importlib.import_module(f"appliance.commands.{verb}")
        parser = Parser(prog=f"appliance {verb}", description=module.SUMMARY, allow_abbrev=False)
        module.configure(parser)
        return int(module.run(parser.parse_args(words[1:])))
    except ApplianceError as error:
        print(f"appliance: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader went away (`appliance plan | head`): nothing is left to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        ["usage: appliance VERB [options]   (`appliance VERB --help` tells each verb's options)", "", *lines]
    )


if __name__ == "__main__":
    sys.exit(main())
