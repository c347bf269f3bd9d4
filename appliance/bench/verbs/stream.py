"""`appliance bench stream`: streamed requests, their tokens counted by ID."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from appliance.bench import assemble, client, options, progress, stream
from appliance.bench.environment_clocks import watching
from appliance.bench.output import Output
from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from appliance.bench.client import Target
    from appliance.bench.options import Load

SUMMARY = (
    "Stream requests from the OpenAI API and count the token IDs that come: time per token, chunk intervals apart from "
    "it, time to first token, throughput, cached tokens. Exit status 1 where a request failed."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    client.configure(parser)
    options.configure_load(parser, input_len="1024", output_len=256, concurrency="1")
    parser.add_argument("--requests", default=None, metavar="N", help="of each repeat (default: --concurrency)")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions", help="of the API")
    parser.add_argument(
        "--prompt", choices=("ids", "text"), default="ids", help="what /v1/completions gets; a chat always gets text"
    )
    options.configure_sampling(parser)
    options.configure_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns 0, or 1 where a request failed."""
    loads = options.loads(arguments, requests=arguments.requests)
    if arguments.endpoint == "chat" and arguments.tokenizer is not None:
        raise ConfigurationError("--tokenizer knows no chat template; leave it out, and the engine is asked")
    silence = options.seconds("--timeout", arguments.timeout)
    target = client.settle(arguments)
    output = Output(arguments.out, as_json=arguments.json)
    try:
        sound = asyncio.run(_measure(arguments, target, loads, silence, output))
    finally:
        # Of a series that ends early, what was measured is shown too.
        if output.results:
            output.finish()
    return 0 if sound else 1


async def _measure(
    arguments: argparse.Namespace, target: Target, loads: list[Load], silence: float, output: Output
) -> bool:
    shown = progress.for_stream(silent=arguments.quiet)
    what = "a chat message" if arguments.endpoint == "chat" else "text" if arguments.prompt == "text" else "token IDs"
    sound = True
    async with client.session(target, silence) as opened:
        longest = max(load.input_tokens for load in loads)
        served = await client.preflight(opened, target, arguments.model, longest, loads[0].output_tokens)
        tokenizer = options.tokenizer(arguments)
        for load in loads:
            with watching(target.planned.gpus or ()) as watch:
                streamed = await stream.measure(
                    opened,
                    target,
                    served,
                    load,
                    shown,
                    endpoint=arguments.endpoint,
                    kind=arguments.prompt,
                    tokenizer=tokenizer,
                )
            labels = {"title": arguments.title, "image": arguments.image}
            dataset = f"random common words, as {what}"
            result = assemble.of_stream(target, served, streamed, watch.clocks(), labels, dataset=dataset)
            output.add(result, f"stream-{load.name}")
            sound = sound and streamed.sound
    return sound
