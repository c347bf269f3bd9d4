"""`python -m appliance.image.sbom --root /image --target v100 --output FILE`: an image's bill of materials.

CycloneDX 1.6 in JSON: Python's distributions as cyclonedx-py sees them in the image's environment, Debian's packages as
dpkg knows them, and the SM70 kernels. Needs cyclonedx-bom; the build runs it beside the image, which does not hold it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from appliance import __version__
from appliance.errors import ApplianceError, CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "v100-appliance"
SCHEMA = SchemaVersion.V1_6

VENV = Path("opt", "venv")
KERNELS = Path("opt", "appliance", "build", "kernels", "manifest.json")
STATUS = Path("var", "lib", "dpkg", "status")
_LIMIT = 300.0


def bill(root: Path, target: str) -> str:
    """Return the bill of the image whose file system is at `root`. Raises CheckError when it cannot be made."""
    bom = python_packages(root / VENV)
    for component in debian_packages(root):
        bom.components.add(component)
    if kernels := kernel_build(root / KERNELS):
        bom.components.add(kernels)
    image = Component(
        type=ComponentType.CONTAINER, name=f"{NAME}-{target}", version=__version__, bom_ref=f"{NAME}-{target}"
    )
    bom.metadata.component = image
    bom.register_dependency(image, bom.components)
    # For the same content the same bill: its number comes from its parts, its time from whoever builds.
    parts = "\n".join(sorted(f"{each.name} {each.version}" for each in bom.components))
    bom.serial_number = uuid5(NAMESPACE_URL, f"{image.name} {image.version}\n{parts}")
    built = os.environ.get("SOURCE_DATE_EPOCH")
    bom.metadata.timestamp = datetime.fromtimestamp(int(built), UTC) if built else datetime.now(UTC)
    text = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=1)
    if error := JsonStrictValidator(SCHEMA).validate_str(text):
        raise CheckError(f"the bill of materials breaks CycloneDX {SCHEMA.to_version()}: {error}")
    return text + "\n"


def python_packages(environment: Path) -> Bom:
    """Return a bill of the distributions in a virtual environment. Raises CheckError."""
    command = [
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        "--output-reproducible",
        "--no-validate",
        "--of",
        "JSON",
    ]
    try:
        done = subprocess.run(
            [*command, str(environment)],
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=True,
            env=_without_ours(),
        )
        return Bom.from_json(json.loads(done.stdout))  # type: ignore[attr-defined, no-any-return] # added by a decorator
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[-1]
        raise CheckError(f"{environment} cannot be listed ({last}); wanted a virtual environment") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CheckError(f"{environment} cannot be listed ({error}); wanted cyclonedx-bom to do it") from error


def _without_ours() -> dict[str, str]:
    """The environment without the path of this package: the listed interpreter would take it for one of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def debian_packages(root: Path) -> Iterator[Component]:
    """Yield the installed packages of dpkg's status file. Raises CheckError when there is none."""
    try:
        text = (root / STATUS).read_text(encoding="utf-8")
        release = (root / "etc" / "os-release").read_text(encoding="utf-8")
    except OSError as error:
        raise CheckError(f"{error.filename} cannot be read ({error.strerror}); wanted a Debian file system") from error
    distro = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    qualifier = f"debian-{distro.get('VERSION_ID', '').strip(chr(34))}"
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status") != "install ok installed":
            continue
        name, version, arch = fields["Package"], fields["Version"], fields["Architecture"]
        purl = PackageURL("deb", "debian", name, version, qualifiers={"arch": arch, "distro": qualifier})
        yield Component(type=ComponentType.LIBRARY, name=name, version=version, purl=purl, bom_ref=str(purl))


def kernel_build(manifest: Path) -> Component | None:
    """Return the SM70 kernels as one component, None where there are none."""
    if not manifest.is_file():
        return None
    record = json.loads(manifest.read_text(encoding="utf-8"))
    return Component(
        type=ComponentType.LIBRARY,
        name="sm70_kernels",
        version=str(record["source_hash"]),
        bom_ref="sm70_kernels",
        properties=[
            Property(name="compiler", value=str(record["compiler"])),
            Property(name="kernels", value=str(len(record["kernels"]))),
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the bill. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m appliance.image.sbom", description=__doc__, allow_abbrev=False)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(argv)
    try:
        arguments.output.write_text(bill(arguments.root, arguments.target), encoding="utf-8")
    except ApplianceError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
