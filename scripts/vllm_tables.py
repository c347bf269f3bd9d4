"""Writes config/vllm/*.json from the vLLM that is installed: `python scripts/vllm_tables.py [FOLDER]`.

The tables let the control plane check names, kinds and choices without importing vLLM, which takes seconds.
"""

from __future__ import annotations

import inspect
import json
import sys
from argparse import Action, BooleanOptionalAction
from pathlib import Path
from typing import Any

from appliance.paths import CONFIG


def describe(action: Action) -> dict[str, Any]:
    """Return what the control plane must know of one argument, in the fields of appliance.launch.arguments.Spec."""
    chain = _converters(action.type)
    record = _kind(action, chain[-1])
    if "_optional_type" in chain:
        record["optional"] = True
    short = [name for name in action.option_strings if not name.startswith("--")]
    if action.dest == "optimization_level":
        # FlexibleArgumentParser rewrites -O, -O3 and -O=3 before argparse sees them.
        short.append("-O")
    if short:
        record["short"] = short
    if action.choices:
        record["choices"] = list(action.choices)
    return record


def _kind(action: Action, converter: str) -> dict[str, Any]:
    if isinstance(action, BooleanOptionalAction):
        return {"kind": "boolean"}
    if action.nargs == 0:
        return {"kind": "flag"}
    if action.nargs == "+" or type(action).__name__ == "_AppendAction":
        items = {"kind": "list", "items": "integer" if converter == "int" else "string"}
        return items if action.nargs else {**items, "repeated": True}
    return dict(_KINDS.get(converter, {"kind": "string"}))


_KINDS: dict[str, dict[str, Any]] = {
    "int": {"kind": "integer"},
    "human_readable_int": {"kind": "integer", "suffixes": True},
    "human_readable_int_or_auto": {"kind": "integer", "suffixes": True, "words": ["auto"]},
    "float": {"kind": "float"},
    "loads": {"kind": "json"},
    "parse_dataclass": {"kind": "json"},
    "union_dict_and_str": {"kind": "json", "text": True},
}
"""Kind by the name of vLLM's converter; every other converter yields text."""


def _converters(convert: Any) -> list[str]:  # noqa: ANN401 - argparse takes any callable as a type
    """Return the names of a converter and of those that vLLM's `optional_type` and `parse_type` wrap in it."""
    names = []
    while convert is not None:
        names.append(getattr(convert, "__name__", ""))
        nonlocals = inspect.getclosurevars(convert).nonlocals if inspect.isfunction(convert) else {}
        convert = nonlocals.get("return_type")
    return names or [""]


def arguments() -> dict[str, Any]:
    """Return the table of the API server's arguments, by their names with underscores."""
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(add_help=False))
    table = {action.dest: describe(action) for action in parser._actions if action.option_strings}
    return {"vllm": _release(), "arguments": dict(sorted(table.items()))}


def environment() -> dict[str, Any]:
    """Return the names of the environment variables that vLLM knows and that carry its prefix."""
    from vllm.envs import environment_variables

    names = sorted(name for name in environment_variables if name.startswith("VLLM_"))
    return {"vllm": _release(), "variables": names}


def write(folder: Path) -> list[Path]:
    """Write both tables into `folder` under the release's name and return their paths."""
    written = []
    for name, table in (("arguments", arguments()), ("environment", environment())):
        path = folder / f"{name}-{table['vllm']}.json"
        path.write_text(_lines(table), encoding="utf-8")
        written.append(path)
    return written


def _release() -> str:
    """The engine's version without its build (`0.19.1+cpu` and `0.19.1` take the same arguments)."""
    import vllm

    return str(vllm.__version__).partition("+")[0]


def _lines(table: dict[str, Any]) -> str:
    """One argument or name a line, so that a change of release shows as a readable difference."""
    (key, body) = next((key, value) for key, value in table.items() if key != "vllm")
    if isinstance(body, dict):
        opening, closing = "{}"
        rows = [f"{json.dumps(name)}: {json.dumps(record)}" for name, record in body.items()]
    else:
        opening, closing = "[]"
        rows = [json.dumps(name) for name in body]
    listed = ",\n".join(f"  {row}" for row in rows)
    return f'{{\n "vllm": "{table["vllm"]}",\n "{key}": {opening}\n{listed}\n {closing}\n}}\n'


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]) if len(sys.argv) > 1 else CONFIG / "vllm"):
        print(path)
