"""Everything that speaks against one profile on one machine, each in words that say what to do. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from appliance.acceleration.platforms import AUTO
from appliance.acceleration.routes import unserved
from appliance.profiles import rehearsal
from appliance.profiles.memory import GIB, MemoryPlan, plan_memory
from appliance.topology.islands import best_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from appliance.models.checkpoint import Checkpoint
    from appliance.profiles.schema import Profile
    from appliance.topology.machine import Gpu, Link, Machine

_PATHS = {
    "pix": "one PCIe switch (PIX)",
    "pxb": "several PCIe switches (PXB)",
    "phb": "the host bridge (PHB)",
    "node": "host bridges of one NUMA node (NODE)",
    "sys": "the link between NUMA nodes (SYS)",
    "nvlink": "NVLink",
    "unknown": "an unknown path",
}

LINKS = "links: "
"""How a reason begins that is about the links between GPUs alone."""


@dataclass(frozen=True)
class Fit:
    """What was found for one profile. `reasons` are all that speak against it; it fits where there are none.

    `gpus` are the ones it would use, `warnings` what a person should know although it fits; `rehearsal` is the one of
    them that says that the start is none on V100s.
    """

    profile: str
    title: str
    gpus: tuple[int, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    memory: MemoryPlan | None = None
    rehearsal: str | None = None

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons


class Judge:
    """Everything that speaks against one profile on one machine."""

    def __init__(
        self,
        machine: Machine,
        profile: Profile,
        checkpoint: Checkpoint | None,
        arguments: Mapping[str, Any] | None,
        environment: Mapping[str, str] | None,
        num_speculative_tokens: int | None,
        platform: str = AUTO,
    ) -> None:
        """`platform` is the setting vllm_platform; the others are those of `assess`."""
        self.machine = machine
        self.platform = platform
        refused = rehearsal.refusal(profile, platform)
        self.profile = profile = rehearsal.rehearsed(profile, platform)
        self.checkpoint = checkpoint
        self.arguments = dict(arguments or {})
        self.environment = environment
        self.num_speculative_tokens = num_speculative_tokens
        self.reasons: list[str] = [refused] if refused else []
        self.warnings: list[str] = []
        needs = profile.needs
        # Someone who sets the tensor parallel size wants that many GPUs.
        own = self.arguments.get("tensor_parallel_size")
        self.count = own if needs.gpus and isinstance(own, int) else needs.gpus

    def fit(self, pinned: bool) -> Fit:
        """Return the verdict.

        Only when `pinned` does a portable profile fit where GPUs are, and one that this build lacks operators for.
        """
        self._check_checkpoint()
        self._check_build(pinned)
        if self.count:
            gpus, memory = self._checkgpu_names()
        else:
            gpus, memory = (), self._check_host(pinned)
        shm, wanted = self.machine.host.shm_bytes, self.profile.needs.shm_bytes
        if wanted and shm is None:
            self.warnings.append(f"the size of /dev/shm is unknown; at least {_gib(wanted)} is needed")
        elif shm is not None and shm < wanted:
            self.reasons.append(
                f"shared memory (/dev/shm) has {_gib(shm)} and {_gib(wanted)} is needed (Docker: shm_size or ipc: host)"
            )
        notice = rehearsal.notice(self.platform, [gpu for gpu in self.machine.gpus if gpu.index in gpus])
        reasons = tuple(self.reasons)
        warnings = (*([notice] if notice else []), *self.warnings)
        return Fit(self.profile.name, self.profile.title, gpus, reasons, warnings, memory, notice)

    def _check_checkpoint(self) -> None:
        if self.checkpoint is None:
            return
        have, wanted = self.checkpoint, self.profile
        if have.kind != wanted.model.kind:
            self.reasons.append(
                f"the checkpoint is {have.kind} ({have.scheme}) and the profile is for {wanted.model.kind}"
            )
        if wanted.architectures and have.architecture not in wanted.architectures:
            names = " or ".join(wanted.architectures)
            self.reasons.append(f"the checkpoint's architecture is {have.architecture} and the profile is for {names}")

    def _check_build(self, pinned: bool) -> None:
        if lacking := unserved(self.profile.expected_acceleration):
            text = f"this build has no operators yet for {', '.join(lacking)}, and nothing else serves those layers"
            (self.warnings if pinned else self.reasons).append(text)

    def _plan(self, memory_bytes: int) -> MemoryPlan:
        return plan_memory(
            self.profile,
            memory_bytes,
            tensor_parallel_size=self.count or 1,
            arguments=self.arguments,
            environment=self.environment,
            num_speculative_tokens=self.num_speculative_tokens,
            checkpoint_bytes=self.checkpoint.bytes if self.checkpoint else None,
        )

    def _check_host(self, pinned: bool) -> MemoryPlan | None:
        if self.machine.gpus and not pinned:
            cards = ", ".join(f"{many} × {name}" for name, many in Counter(g.name for g in self.machine.gpus).items())
            self.reasons.append(
                f"this machine has GPUs ({cards}), and the CPU engine is started there only when pinned with "
                f"APPLIANCE_PROFILE={self.profile.name}"
            )
        host = self.machine.host
        sizes = [size for size in (host.memory_bytes, host.cgroup_memory_bytes) if size is not None]
        if not sizes:
            self.reasons.append("the host's memory is unknown")
            return None
        plan = self._plan(min(sizes))
        self.reasons += [f"memory: {shortfall}" for shortfall in plan.shortfalls]
        return plan

    def _checkgpu_names(self) -> tuple[tuple[int, ...], MemoryPlan | None]:
        gpus = self.machine.gpus
        if not gpus:
            self.reasons.append(f"it needs {_many(self.count)} and none is visible")
            return (), None
        self._check_driver()
        plans = {size: self._plan(size) for size in {gpu.memory_bytes for gpu in gpus} if size is not None}
        usable, against = self._usable(plans)
        # A GPU that does not qualify is a reason only where the others are too few.
        enough = len(usable) >= self.count
        if not enough:
            self.reasons += against
            have = (
                f"this machine has {len(gpus)}" if len(gpus) < self.count else f"{len(usable)} of {len(gpus)} qualify"
            )
            self.reasons.append(f"it needs {_many(self.count)} and {have}")
        # Without enough, what it would use is still told: for the links, and for a forced start.
        chosen = best_set(self.machine, self.count, usable if enough else None).gpus
        self._check_links(chosen)
        if not chosen:
            chosen = tuple(gpu.index for gpu in gpus)
        sizes = [gpu.memory_bytes for gpu in gpus if gpu.index in chosen and gpu.memory_bytes is not None]
        return chosen, plans[min(sizes)] if sizes else None

    def _check_driver(self) -> None:
        needs, driver = self.profile.needs, self.machine.driver
        if needs.driver_min is None:
            return
        newest = needs.driver_max
        branch = (driver or "").split(".")[0]
        if not branch.isdecimal():
            seen = f'"{driver}", which is no version' if driver else "unknown: give the XML of `nvidia-smi -q -x`"
            self.reasons.append(f"the driver is {seen}")
        elif int(branch) < needs.driver_min or (newest is not None and int(branch) > newest):
            why = "CUDA 12.8 needs a newer one" if int(branch) < needs.driver_min else "later branches know no Volta"
            allowed = f"{needs.driver_min} and newer" if newest is None else f"{needs.driver_min}-{newest}"
            self.reasons.append(f"driver {driver} is outside {allowed}: {why}")

    def _usable(self, plans: Mapping[int, MemoryPlan]) -> tuple[list[int], list[str]]:
        """Return the indices of the GPUs that qualify, and what is against the others, like GPUs together."""
        against: dict[str, list[Gpu]] = {}
        for gpu in self.machine.gpus:
            for reason in self._against(gpu, plans):
                against.setdefault(reason, []).append(gpu)
        sentences = []
        for reason, gpus in against.items():
            names = " and ".join(dict.fromkeys(gpu.name for gpu in gpus))
            sentences.append(f"{gpu_names([gpu.index for gpu in gpus])} ({names}): {reason}")
        out = {gpu.index for gpus in against.values() for gpu in gpus}
        return [gpu.index for gpu in self.machine.gpus if gpu.index not in out], sentences

    def _against(self, gpu: Gpu, plans: Mapping[int, MemoryPlan]) -> Iterator[str]:
        wanted = self.profile.needs.capability
        if wanted and gpu.capability is None:
            yield "compute capability unknown: give the XML of `nvidia-smi -q -x`"
        elif wanted and gpu.capability and not rehearsal.serves(gpu.capability, wanted, self.platform):
            yield f"compute capability {_version(gpu.capability)}, and the kernels are for {_version(wanted)}"
        if gpu.memory_bytes is None:
            yield "memory unknown: give the XML of `nvidia-smi -q -x`"
        else:
            for shortfall in plans[gpu.memory_bytes].shortfalls:
                yield f"memory: {shortfall}"
        if gpu.mig:
            yield f"in MIG mode; turn it off (`nvidia-smi -i {gpu.index} -mig 0`)"
        mode = (gpu.compute_mode or "").lower()
        if mode == "prohibited" or mode.startswith("exclusive"):
            yield f"compute mode {gpu.compute_mode}; set it back (`nvidia-smi -i {gpu.index} -c DEFAULT`)"

    def _check_links(self, chosen: tuple[int, ...]) -> None:
        need = self.profile.needs.links
        if need == "none":
            return
        place = {gpu.index: at for at, gpu in enumerate(self.machine.gpus)}
        bad: list[str] = []
        for a, b in combinations(chosen, 2):
            both = self.machine.links[place[a]][place[b]], self.machine.links[place[b]][place[a]]
            problem = next((problem for problem in (_against_link(link, need) for link in both) if problem), None)
            if problem:
                bad.append(f"GPU {a} and GPU {b} {problem}")
        if bad:
            more = len(bad) - 1
            rest = f" (and {more} more pair{'s' if more > 1 else ''} of {gpu_names(list(chosen))})" if more else ""
            self.reasons.append(f"{LINKS}{bad[0]}{rest}")


def _against_link(link: Link, need: str) -> str | None:
    path = _PATHS.get(link.kind, link.kind)
    if need == "nvlink":
        return None if link.kind == "nvlink" else f"are joined by {path}, and NVLink is needed"
    if link.peer_access is False:
        return f"cannot read each other's memory over {path}"
    if link.peer_access is None and link.kind != "nvlink":
        return f"are joined by {path}, and whether they can read each other's memory is unknown"
    return None


def gpu_names(indices: list[int]) -> str:
    """Return `GPU 3`, `GPUs 0, 2` or `GPUs 0-3`."""
    if len(indices) == 1:
        return f"GPU {indices[0]}"
    joined = indices == list(range(indices[0], indices[-1] + 1)) and len(indices) > 2
    return "GPUs " + (f"{indices[0]}-{indices[-1]}" if joined else ", ".join(map(str, indices)))


def _many(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
