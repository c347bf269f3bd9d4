"""`appliance bench decode`: stable decode steps out of the engine's step record."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from appliance.bench import assemble, client, decode, environment, options, progress
from appliance.bench.environment_clocks import watching
from appliance.bench.output import Output

if TYPE_CHECKING:
    import argparse

    from appliance.bench.client import Target
    from appliance.bench.options import Load

SUMMARY = (
    "Time stable decode steps: so many requests at once, and of the engine's step record only what is a full batch, "
    "without prefill, after warm-up. Says what was left out. Exit status 1 where a request failed."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    client.configure(parser)
    options.configure_load(parser, input_len="2048", output_len=256, concurrency="32")
    options.configure_sampling(parser)
    group = parser.add_argument_group("steps")
    group.add_argument("--warm-up-steps", default="4", metavar="N", help="full-batch steps left out of each repeat (4)")
    group.add_argument("--eager", action="store_true", help="count steps that were no graph replay too")
    options.configure_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure. Returns 0, or 1 where a request failed or somebody else's ran beside them."""
    loads = options.loads(arguments)
    warm_up = options.whole("--warm-up-steps", arguments.warm_up_steps, 0, 10_000)
    silence = options.seconds("--timeout", arguments.timeout)
    target = client.settle(arguments)
    environment.needs_plan(target.plan, target.run_dir, "`bench decode`, which reads the step record,")
    for load in loads:
        decode.check(load, target)
    output = Output(arguments.out, as_json=arguments.json)
    try:
        sound = asyncio.run(_measure(arguments, target, loads, warm_up, silence, output))
    finally:
        # Of a series that ends early, what was measured is shown too.
        if output.results:
            output.finish()
    return 0 if sound else 1


async def _measure(
    arguments: argparse.Namespace, target: Target, loads: list[Load], warm_up: int, silence: float, output: Output
) -> bool:
    shown = progress.for_stream(silent=arguments.quiet)
    sound = True
    async with client.session(target, silence) as opened:
        longest = max(load.input_tokens for load in loads)
        served = await client.preflight(opened, target, arguments.model, longest, loads[0].output_tokens)
        tokenizer = options.tokenizer(arguments)
        for load in loads:
            with watching(target.planned.gpus or ()) as watch:
                decoded = await decode.measure(
                    opened, target, served, load, warm_up, shown, eager=arguments.eager, tokenizer=tokenizer
                )
            labels = {"title": arguments.title, "image": arguments.image}
            result = assemble.of_decode(target, served, load, decoded, watch.clocks(), labels)
            output.add(result, f"decode-{load.name}")
            sound = sound and decoded.sound
    return sound
