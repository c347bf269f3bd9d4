"""`appliance bench serve`: the 32K serving contract on vLLM's own benchmark, or a screen of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.bench import assemble, client, options, progress, serve
from appliance.bench.environment_clocks import watching
from appliance.bench.output import Output
from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    import argparse

    from appliance.bench.client import Served, Target

SUMMARY = (
    "Run the 32K serving contract on vLLM's own benchmark: random prompts of seed 1234, 32768 tokens in and 256 out, "
    "128 requests sent at once, 32 at a time. Whatever departs from it makes the result a screen, which says so "
    "everywhere. Exit status 1 where a request failed or a count is wrong."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    client.configure(parser)
    whole = serve.CONTRACT
    group = parser.add_argument_group("load", "the contract's by default")
    group.add_argument("--screen", action="store_true", help=f"{serve.SCREEN_REQUESTS} requests instead of all")
    group.add_argument("--input-len", default=str(whole.input_tokens), metavar="N", help=f"({whole.input_tokens})")
    group.add_argument("--output-len", default=str(whole.output_tokens), metavar="N", help=f"({whole.output_tokens})")
    group.add_argument("--concurrency", default=str(whole.concurrency), metavar="N", help=f"({whole.concurrency})")
    group.add_argument("--requests", default=None, metavar="N", help=f"({whole.requests})")
    group.add_argument("--seed", default=str(whole.seed), metavar="N", help=f"({whole.seed})")
    group.add_argument("--tokenizer", metavar="DIR", help="folder of the tokenizer (default: the served model's)")
    group.add_argument(
        "--timeout",
        default="3600",
        metavar="S",
        help="seconds in which no request ends after which it is given up (3600)",
    )
    options.configure_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns 0, or 1 where a request failed or a count is wrong."""
    load = load_of(arguments)
    silence = options.seconds("--timeout", arguments.timeout)
    target = client.settle(arguments)
    tokenizer = _tokenizer(arguments, target)
    model = asyncio.run(_preflight(target, arguments.model, load))
    output = Output(arguments.out, as_json=arguments.json)
    before = asyncio.run(_counters(target))
    shown = progress.for_stream(silent=arguments.quiet)
    with watching(target.planned.gpus or ()) as watch:
        raw = serve.measure(target, model.name, tokenizer, load, shown, silence)
    after = asyncio.run(_counters(target))
    served = serve.Served(load, raw, serve.growth(before, after))
    labels = {"title": arguments.title, "image": arguments.image}
    result = assemble.of_serve(target, model, served, watch.clocks(), labels)
    try:
        output.add(result, f"serve-{load.name}{'-screen' if result.screen else ''}")
    finally:
        output.finish()
    return 1 if result.failures else 0


def load_of(arguments: argparse.Namespace) -> options.Load:
    """Return the load. Raises ConfigurationError for a value of the wrong kind, or both of --screen and --requests."""
    if arguments.screen and arguments.requests is not None:
        raise ConfigurationError("--screen and --requests both say how many requests; give one of them")
    number = str(serve.SCREEN_REQUESTS if arguments.screen else serve.CONTRACT.requests)
    requests = options.whole("--requests", arguments.requests or number, 1, 1_000_000)
    return options.Load(
        input_tokens=options.whole("--input-len", arguments.input_len, 1, options.LONGEST),
        output_tokens=options.whole("--output-len", arguments.output_len, 1, options.LONGEST),
        concurrency=options.whole("--concurrency", arguments.concurrency, 1, 4096),
        requests=requests,
        repeats=1,
        seed=options.whole("--seed", arguments.seed, 0, 2**32 - 1),
        sampling=dict(serve.CONTRACT.sampling),
        cached=False,
    )


def _tokenizer(arguments: argparse.Namespace, target: Target) -> Path:
    model = target.planned.model
    folder = arguments.tokenizer or (None if model is None else model.folder)
    if folder is None:
        raise ConfigurationError(
            "no run directory tells the model's folder; name one with its tokenizer by --tokenizer"
        )
    if not Path(folder).is_dir():
        raise ConfigurationError(f"--tokenizer {folder}: not there; wanted the served model's folder")
    return Path(folder).absolute()


async def _preflight(target: Target, model: str | None, load: options.Load) -> Served:
    async with client.session(target, client.ANSWER_S) as opened:
        return await client.preflight(opened, target, model, load.input_tokens, load.output_tokens)


async def _counters(target: Target) -> dict[str, float]:
    """Return the engine's counters, empty where it does not show them."""
    async with client.session(target, client.ANSWER_S) as opened:
        try:
            return serve.counters(await client.text(opened, target, "/metrics"))
        except CheckError:
            return {}
