"""`python -m appliance.image.sizes IMAGE`: how large an image is, layer by layer, as Docker counts it."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from appliance.errors import ApplianceError, CheckError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 60.0
_STEP = re.compile(r"^(/bin/sh -c |RUN /bin/sh -c |#\(nop\)\s+)|\s*# buildkit$")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer that holds files: its size in bytes, and the step of the Dockerfile that made it."""

    bytes: int
    step: str


def layers(image: str) -> list[Layer]:
    """Return the layers of a local image, the first one first. Raises CheckError and ConfigurationError."""
    command = ["docker", "history", "--no-trunc", "--human=false", "--format", "{{json .}}", image]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckError(f"docker cannot be asked ({error}); wanted Docker's command and a running daemon") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ConfigurationError(f'image "{image}": {said}; wanted one that `docker images` lists')
    return parse(done.stdout)


def parse(history: str) -> list[Layer]:
    """Read what `docker history` printed, a JSON object a line, the last layer first; empty layers are left out."""
    found = [json.loads(line) for line in history.splitlines() if line.strip()]
    made = [
        Layer(int(each["Size"]), _STEP.sub("", str(each["CreatedBy"])).strip() or each["Comment"]) for each in found
    ]
    return [layer for layer in reversed(made) if layer.bytes]


def report(image: str, found: Sequence[Layer]) -> str:
    """Return the table: megabytes (10^6 bytes) of each layer, and of the whole."""
    rows = [f"{layer.bytes / 1e6:9.1f} MB  {' '.join(layer.step.split())[:90]}" for layer in found]
    return "\n".join([*rows, f"{sum(layer.bytes for layer in found) / 1e6:9.1f} MB  {image}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the sizes. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m appliance.image.sizes", description=__doc__, allow_abbrev=False)
    parser.add_argument("image")
    parser.add_argument("--json", action="store_true", help="print the layers as JSON")
    parser.add_argument("--most", type=int, metavar="MB", help="end with 1 when the image is larger")
    arguments = parser.parse_args(argv)
    try:
        found = layers(arguments.image)
    except ApplianceError as error:
        print(f"sizes: {error}", file=sys.stderr)
        return error.exit_status
    total = sum(layer.bytes for layer in found)
    record = {"image": arguments.image, "bytes": total, "layers": [asdict(layer) for layer in found]}
    print(json.dumps(record, indent=1) if arguments.json else report(arguments.image, found))
    if arguments.most is not None and total > arguments.most * 10**6:
        wanted = f"wanted at most {arguments.most} MB; the table shows which layer grew"
        print(f"sizes: {arguments.image} has {total / 1e6:.1f} MB; {wanted}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
