"""`python -m appliance.vllm_plugin.server.serve ARGUMENTS`: vLLM's OpenAI server.

It does what `vllm.entrypoints.openai.api_server` does as a program.

Not the command `vllm`: it looks for the metadata of a distribution named vllm, which the build for CPUs lacks.
Processes that vLLM spawns import this module again, under another name: it must not import vllm, nor serve.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from typing import NoReturn

from appliance import paths
from appliance.vllm_plugin import stack_dump
from appliance.vllm_plugin.requests import checks
from appliance.vllm_plugin.server import api_key
from appliance.vllm_plugin.sm70 import rank_report

PROGRAM = "appliance.vllm_plugin.server.serve"

TERMINATED = 128 + signal.SIGTERM

CONFIGURING = frozenset(
    {
        "create_engine_config",
        "from_cli_args",
        "get_uvicorn_log_config",
        "import_reasoning_parser",
        "import_tool_parser",
        "load_chat_template",
        "validate_api_server_args",
        "validate_parsed_serve_args",
    }
)
"""The functions of vLLM 0.19.1 that judge what a person asked for. What they raise is a mistake in that."""


def main() -> int:
    """Serve until the end. Returns 2, after one line, for a configuration that vLLM refuses, or a rank of ours.

    Exits with 143 when SIGTERM comes before it serves, and with 0 when it comes later.
    """
    stack_dump.dump_on_signal()
    os.environ.setdefault("APPLIANCE_RUN_DIR", str(paths.run_dir()))
    try:
        _serve()
    except Exception as error:
        # vLLM tells of a worker's error only that the engine core failed.
        refused = rank_report.refusal(paths.run_dir())
        if refused is None and not refuses_configuration(error):
            raise
        # In the form of argparse, which reports the other mistakes.
        print(f"{PROGRAM}: error: {refused or one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _serve() -> None:
    key = api_key.take(os.environ)

    import uvloop
    from vllm.entrypoints.openai.api_server import run_server_worker, setup_server
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.utils import cli_env_setup
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.system_utils import decorate_logs

    from appliance.vllm_plugin.server import client_mistakes

    async def run_server() -> None:
        decorate_logs("APIServer")
        listen_address, sock = setup_server(arguments)
        if key is not None:
            # Only now: setup_server logs every argument that is no default.
            arguments.api_key = [key]
        # vLLM's own handler raises KeyboardInterrupt, which zmq_socket_ctx swallows: the start then goes on waiting for
        # an engine core that waits for it. Once it serves, vLLM replaces this handler by a graceful one.
        signal.signal(signal.SIGTERM, _terminated)
        await run_server_worker(listen_address, sock, arguments)

    checks.install()
    client_mistakes.install()
    cli_env_setup()
    parser = make_arg_parser(FlexibleArgumentParser(prog=PROGRAM, description=__doc__))
    arguments = parser.parse_args()
    validate_parsed_serve_args(arguments)
    uvloop.run(run_server())


def _terminated(*_: object) -> NoReturn:
    sys.exit(TERMINATED)


def refuses_configuration(error: BaseException) -> bool:
    """Whether vLLM complains of its arguments, rather than failing at something."""
    if not isinstance(error, ValueError | KeyError | NotImplementedError | OSError):
        return False
    return any(frame.name in CONFIGURING for frame in traceback.extract_tb(error.__traceback__))


def one_line(error: BaseException) -> str:
    """Return what `error` says in one line. pydantic's errors are taken apart: field, complaint, value seen."""
    listed = getattr(error, "errors", None)
    if callable(listed):
        parts = [_complaint(item) for item in listed(include_url=False, include_context=False)]
        return "; ".join(parts)
    # A KeyError's own text is the representation of its argument.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.split()).removeprefix("Error: ") or type(error).__name__


def _complaint(item: dict[str, object]) -> str:
    location = item.get("loc")
    field = ".".join(map(str, location)) if isinstance(location, tuple) else ""
    text = re.sub(r"^(Value error|Assertion failed), ", "", " ".join(str(item.get("msg")).split()))
    seen = item.get("input")
    shown = f" (got {seen!r})" if field and isinstance(seen, str | int | float | bool | None) else ""
    return f"{field}: {text}{shown}" if field else text


if __name__ == "__mp_main__":
    # A spawned process can hang long before it loads the plugin.
    stack_dump.dump_on_signal()
elif __name__ == "__main__":
    sys.exit(main())
