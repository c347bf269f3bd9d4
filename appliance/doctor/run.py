"""Which checks are made of which start, in the order in which a person would mend what they find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from appliance.acceleration.routes import unserved
from appliance.doctor.check import Check
from appliance.doctor.checks import gpu, host, libraries, peer, ports, storage
from appliance.doctor.checks import models as checkpoints
from appliance.doctor.scope import of_plan
from appliance.launch.request import LIVE
from appliance.models import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.doctor.scope import Scope
    from appliance.launch.plan import Plan
    from appliance.topology.machine import Machine

RECORDED = "a recorded machine cannot be tried out"
REHEARSED = "a rehearsal runs other libraries, for the card that is there"


def preflight(plan: Plan) -> list[Check]:
    """Make the checks that `serve` makes before it starts anything: no process is started, nothing is downloaded."""
    scope = of_plan(plan)
    driver, notes = plan.machine.get("driver"), plan.machine.get("notes") or ()
    needs = scope.needs
    size, free = host.read_shm()
    return [
        gpu.driver(driver, notes, needs.gpus, needs.driver_min, needs.driver_max),
        libraries.engine(scope.engine, libraries.engine_version(scope.engine)),
        libraries.kernels(scope.engine, unserved(scope.expected)),
        *_folders(scope),
        _space(scope),
        host.shm(size, free, needs.shm_bytes),
        *_models(scope),
        *_ports(scope),
    ]


def examine(scope: Scope, machine: Machine) -> Iterator[Check]:
    """Make every check, slow ones included, and yield each as it is done."""
    needs, live = scope.needs, machine.source == LIVE
    chosen = scope.gpus or tuple(card.index for card in machine.gpus)
    yield gpu.driver(machine.driver, machine.notes, needs.gpus, needs.driver_min, needs.driver_max)
    yield gpu.gpus(machine, needs.gpus, scope.gpus)
    if live:
        yield gpu.libcuda(needs.gpus, gpu.resolved_libcuda() if needs.gpus else None)
    else:
        yield Check("libcuda", "CUDA driver library", "skipped", RECORDED)
    yield libraries.engine(scope.engine, libraries.engine_version(scope.engine))
    yield libraries.kernels(scope.engine, unserved(scope.expected))
    yield from _device_code(scope)
    yield from _peers(scope, machine, chosen, live=live)
    size, free = host.read_shm() if live else (machine.host.shm_bytes, machine.host.shm_bytes)
    yield host.shm(size, free, needs.shm_bytes)
    yield host.memory(machine.host, scope.host_memory)
    yield host.glibc(host.glibc_version(), host.wheel_tags())
    yield host.clock(host.clock_source(), boottime=host.has_boottime())
    yield from _folders(scope)
    yield _space(scope)
    yield from _models(scope)
    yield from _ports(scope)


def _device_code(scope: Scope) -> Iterator[Check]:
    volta = scope.engine == "v100"
    if volta and scope.rehearsal:
        for name, title in libraries.DEVICE_CODE.items():
            yield Check(name, title, "skipped", REHEARSED)
        return
    yield libraries.torch(scope.engine, libraries.ask_torch() if volta else "")
    yield libraries.extensions(scope.engine, libraries.read_extensions(scope.folder("state_dir")) if volta else "")
    yield libraries.cuda13(scope.engine, libraries.installed() if volta else ())


def _peers(scope: Scope, machine: Machine, chosen: tuple[int, ...], *, live: bool) -> Iterator[Check]:
    if scope.needs.gpus == 0:
        yield from peer.skipped(gpu.NO_GPU)
        return
    yield peer.access(machine, chosen, scope.needs.links)
    if not live or len(chosen) < 2:
        reason = "fewer than two GPUs are used" if live else RECORDED
        yield Check("peer_data", "peer copies", "skipped", reason)
        return
    yield peer.data(peer.try_copies(chosen), scope.needs.links)


def _folders(scope: Scope) -> list[Check]:
    paths = {name: scope.folder(f"{name}_dir") for name in ("state", "run", "models")}
    return [storage.folder(name, path, storage.write_trouble(path)) for name, path in paths.items()]


def _space(scope: Scope) -> Check:
    """Only a model that is not there yet needs space, less what an interrupted download has brought."""
    models = scope.folder("models_dir")
    needed = 0
    if scope.model is not None and scope.model.origin != "folder":
        folder = Path(scope.model.folder)
        if not place.is_there(folder):
            needed = max(0, scope.needs.disk_bytes - place.fetched_bytes(folder))
    return storage.space(models, storage.free_bytes(models), needed)


def _models(scope: Scope) -> list[Check]:
    planned = (("model", scope.model), ("draft", scope.draft))
    offline = bool(scope.settings["offline"])
    return [checkpoints.model(name, model, offline=offline) for name, model in planned if model is not None]


def _ports(scope: Scope) -> list[Check]:
    values = scope.settings
    found = [_port("engine", str(values["host"]), int(values["port"]))]
    if values["sidecar"]:
        found.append(_port("sidecar", str(values["sidecar_host"]), int(values["sidecar_port"])))
    return found


def _port(name: str, address: str, number: int) -> Check:
    trouble = ports.listen_trouble(address, number)
    return ports.port(name, address, number, trouble, ports.holder_of(number) if trouble else None)


def summary(checks: list[Check]) -> str:
    """Count the checks by their status, in one line."""
    words = {"ok": "fine", "warn": "to look at", "fail": "failed", "skipped": "skipped"}
    counts = {status: sum(check.status == status for check in checks) for status in words}
    return ", ".join(f"{count} {words[status]}" for status, count in counts.items())
