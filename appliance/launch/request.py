"""What a start is made of: the command line, the environment, and the machine that the GPUs are chosen from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ConfigurationError
from appliance.launch import layers, settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from appliance.topology.machine import Gpu, Machine

LIVE = "NVML"
"""`Machine.source` of this machine; any other is a recording."""


@dataclass(frozen=True)
class Request:
    """What is asked for. `options` are the command line's settings as text by name, `passthrough` what followed `--`.

    `machine` is what may be used of the machine, `cwd` what relative paths are seen from.
    """

    options: Mapping[str, str]
    passthrough: tuple[str, ...]
    environ: Mapping[str, str]
    machine: Machine
    cwd: Path

    def settle(self) -> layers.Layers:
        """Return what a person set, layer over layer. Raises ConfigurationError."""
        return layers.settle(self.options, self.passthrough, self.environ, self.cwd)


def from_arguments(args: argparse.Namespace, environ: Mapping[str, str], cwd: Path) -> Request:
    """Return the request in a verb's parsed arguments (see `settings.add_options`).

    Looks at this machine, or reads the recorded one that the setting `topology` names. Raises ConfigurationError.
    """
    options, passthrough = settings.collect(args), settings.passthrough(args)
    given = layers.settle(options, passthrough, environ, cwd).settings
    topology, smi_xml = given.get("topology"), given.get("smi_xml")
    if topology is None and smi_xml is not None:
        raise ConfigurationError(f"{smi_xml.source}: smi_xml goes with topology, the text of `nvidia-smi topo -m`")
    if topology is None:
        from appliance.topology import live

        machine = visible(live.detect(), environ)
    else:
        from appliance.topology import recorded

        machine = recorded.load(Path(topology.value), Path(smi_xml.value) if smi_xml else None)
    return Request(options, tuple(passthrough), environ, machine, cwd)


def visible(machine: Machine, environ: Mapping[str, str]) -> Machine:
    """Return `machine` with only the GPUs that CUDA_VISIBLE_DEVICES leaves: someone else may use the others.

    NVML shows them all the same. An empty value hides nothing: Compose hands over an unset variable so.
    Raises ConfigurationError for an entry that is none of the GPUs.
    """
    given = environ.get("CUDA_VISIBLE_DEVICES", "")
    if not given or not machine.gpus:
        return machine
    chosen = []
    for entry in given.split(","):
        # CUDA takes any unambiguous beginning of a UUID.
        found = [gpu.index for gpu in machine.gpus if _names(entry.strip(), gpu)]
        if len(found) != 1:
            known = ", ".join(str(gpu.index) for gpu in machine.gpus)
            raise ConfigurationError(
                f'environment CUDA_VISIBLE_DEVICES is "{given}", and "{entry}" is none of the GPUs {known}; name GPUs '
                "by their number in `nvidia-smi` or by UUID"
            )
        chosen += found
    kept = [place for place, gpu in enumerate(machine.gpus) if gpu.index in chosen]
    if len(kept) == len(machine.gpus):
        return machine
    return replace(
        machine,
        gpus=tuple(machine.gpus[place] for place in kept),
        links=tuple(tuple(machine.links[row][column] for column in kept) for row in kept),
        notes=(*machine.notes, f"CUDA_VISIBLE_DEVICES={given} hides the other {len(machine.gpus) - len(kept)} GPUs"),
    )


def _names(entry: str, gpu: Gpu) -> bool:
    return entry == str(gpu.index) or (entry.startswith("GPU-") and bool(gpu.uuid) and str(gpu.uuid).startswith(entry))
