"""The engine as a benchmark's client meets it: where it is, whether it answers, what it serves and how long a context.

Whatever is wrong is one line: an engine that is not up is a failed check; a wrong key, an unknown model and a context
that is too long are wrong usage.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from appliance import paths, rundir
from appliance.errors import CheckError, ConfigurationError, nearest
from appliance.health import address
from appliance.launch import keys, layers, settings
from appliance.rundir.phase import Phase
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Mapping

    import aiohttp

CONNECT_S = 10.0
ANSWER_S = 60.0
"""Of a question that asks for no generation."""

_PLANNED = {"arguments", "gpus", "machine", "model", "settings"}
"""What a plan of ours has; a record without them is none."""


@dataclass(frozen=True)
class Target:
    """Where the engine is. `plan` is plan.json, whose hash goes into results; empty where there is none.

    A plan of another engine than the one at `url` counts as none.
    """

    url: str
    key: str | None = field(repr=False)
    run_dir: Path
    plan: dict[str, Any] = field(repr=False)

    @property
    def planned(self) -> PlanRecord:
        """The plan's fields; all None where there is no plan."""
        return PlanRecord.from_json(self.plan)

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True)
class Served:
    """A model that the engine lists; `max_model_len` is None where it does not say."""

    name: str
    max_model_len: int | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the engine is."""
    group = parser.add_argument_group("engine", "where it is; a running `appliance serve` on this machine is found")
    group.add_argument("--url", help="address of the engine (default: the run directory's plan, else the settings)")
    group.add_argument("--run-dir", metavar="DIR", help="the run directory (default: APPLIANCE_RUN_DIR)")
    group.add_argument("--model", metavar="NAME", help="name of the model in the API (default: the one served)")
    group.add_argument(
        "--api-key-file", metavar="FILE", help="file with the API's key (default: APPLIANCE_API_KEY, VLLM_API_KEY)"
    )


def settle(arguments: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Target:
    """Return where the engine is. Raises ConfigurationError for what cannot be meant."""
    environ = os.environ if environ is None else environ
    given = {"run_dir": arguments.run_dir, "api_key_file": arguments.api_key_file}
    written = {name: text for name, text in given.items() if text is not None}
    if "api_key_file" in written:
        environ = {name: value for name, value in environ.items() if name != "APPLIANCE_API_KEY"}
    known = layers.settle(written, (), environ, Path.cwd()).settings
    if "run_dir" in known:
        run_dir = Path(known["run_dir"].value)
    else:
        run_dir = Path(known["state_dir"].value) / "run" if "state_dir" in known else paths.run_dir()
    plan = rundir.read(run_dir, rundir.PLAN) or {}
    if not plan.keys() >= _PLANNED:
        plan = {}
    key = keys.api_key(known, environ)
    planned = _planned(plan, {name: sourced.value for name, sourced in known.items()})
    url = planned if arguments.url is None else _checked(arguments.url)
    if url != planned and arguments.run_dir is None:
        # Another engine than this machine's: its plan would describe the wrong one.
        plan = {}
    return Target(url, key.value if key else None, run_dir, plan)


def _planned(plan: dict[str, Any], known: dict[str, Any]) -> str:
    values = {name: setting.default for name, setting in settings.SETTINGS.items()}
    record = PlanRecord.from_json(plan)
    values |= {name: sourced.value for name, sourced in (record.settings or {}).items()} | known
    return address.url(values["host"], values["port"], tls=record.tls)


def _checked(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        fine = None
    if not fine or parts.query or parts.fragment or parts.username:
        raise ConfigurationError(f'--url "{url}"; wanted http://HOST:PORT')
    return text.rstrip("/").removesuffix("/v1")


@asynccontextmanager
async def session(target: Target, silence_s: float) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client that gives up a connection on which nothing came for `silence_s` seconds, and no other."""
    try:
        import aiohttp
    except ImportError:
        raise CheckError(
            "benchmarks need the package aiohttp, of the extra `bench`, which is not installed here"
        ) from None

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
    # As many connections as there are requests: aiohttp's own limit of 100 would queue the others unseen.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=target.headers, timeout=timeout, connector=connector) as opened:
        yield opened


async def ask(client: aiohttp.ClientSession, target: Target, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
    """Return the JSON that the engine answers on `path`, a question that generates nothing.

    Raises CheckError where no engine answers, or with an error; ConfigurationError where it refuses the key.
    """
    answer = await text(client, target, path, body)
    try:
        return json.loads(answer)
    except ValueError as error:
        raise CheckError(f"{target.url}{path}: {error}; wanted an engine's answer in JSON") from None


async def text(client: aiohttp.ClientSession, target: Target, path: str, body: dict[str, Any] | None = None) -> str:
    """Return what the engine answers on `path`; raises as `ask` does."""
    import aiohttp

    where = f"{target.url}{path}"
    timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    try:
        method = "GET" if body is None else "POST"
        async with client.request(method, where, json=body, timeout=timeout) as answer:
            if answer.status in (401, 403):
                shown = "the key that was given" if target.key else "a request without a key"
                raise ConfigurationError(
                    f"{target.url} refuses {shown} (HTTP {answer.status}); name the right one with --api-key-file or "
                    "APPLIANCE_API_KEY"
                )
            if answer.status != 200:
                said = " ".join((await answer.text(errors="replace")).split())
                raise CheckError(f"{where} answers HTTP {answer.status}: {said[:200] or 'nothing'}; wanted 200")
            return await answer.text(errors="replace")
    except (aiohttp.ClientConnectorError, ConnectionError) as error:
        raise CheckError(
            f"no engine answers at {target.url} ({error.__cause__ or error}); start one with `appliance serve`, or "
            "name another with --url"
        ) from None
    except TimeoutError:
        raise CheckError(
            f"{where} has not answered within {ANSWER_S:.0f} s; `appliance probe live` may say why"
        ) from None
    except aiohttp.ClientError as error:
        raise CheckError(f"{where}: {str(error) or type(error).__name__}; wanted an engine's answer") from None


async def preflight(
    client: aiohttp.ClientSession, target: Target, model: str | None, input_tokens: int, output_tokens: int
) -> Served:
    """Return the model to ask, once it is sure that requests of that length can be served.

    Raises CheckError where no engine answers or it is not ready, ConfigurationError for a key, a model or a length
    that it refuses.
    """
    answer = await ask(client, target, "/v1/models")
    try:
        listed = {str(entry["id"]): entry.get("max_model_len") for entry in answer["data"]}
    except (TypeError, KeyError):
        raise CheckError(f"{target.url}/v1/models lists no models; wanted the address of an OpenAI API") from None
    planned = target.planned.served_model_name
    name = model or (planned if planned in listed else next(iter(listed), None))
    if name is None:
        raise CheckError(f"{target.url} serves no model yet; `appliance probe ready` says when it does")
    if name not in listed:
        known = ", ".join(listed)
        raise ConfigurationError(
            f'--model "{name}" is not served at {target.url}{nearest(name, listed) or ";"} it serves {known}'
        )
    phase = (Phase.read(target.run_dir) or Phase()).phase if target.plan else None
    if phase not in (None, "ready"):
        # It answers before it is ready, and has requests of its own until then.
        raise CheckError(f"the engine is {phase}, not ready; `appliance probe ready` says when it is")
    longest = listed[name]
    if isinstance(longest, int) and input_tokens + output_tokens > longest:
        raise ConfigurationError(
            f"{input_tokens} input and {output_tokens} output tokens are {input_tokens + output_tokens}; {name} is "
            f"served with a context of {longest} tokens: ask for less, or serve it with a larger max_model_len"
        )
    return Served(name, longest if isinstance(longest, int) else None)
