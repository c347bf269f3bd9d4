"""Which profile fits a machine and a checkpoint, and every reason why each other does not. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from appliance.acceleration.platforms import AUTO
from appliance.errors import CheckError, ConfigurationError, nearest
from appliance.profiles import ways_on
from appliance.profiles.fit import Fit, Judge, gpu_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from appliance.models.checkpoint import Checkpoint
    from appliance.profiles.schema import Profile
    from appliance.topology.machine import Machine


@dataclass(frozen=True)
class Selection:
    """The outcome. `ranked` are those that fit, the most preferred first; `rejected` the others with their reasons.

    `chosen` is None where nothing may be started, and `problem` then says so in one line. `source` is `best fit`,
    `pinned` or `forced`. `warnings` hold for the chosen one. `advice` says what else could be done, one sentence each;
    `by_card` what would be chosen for each likely card, where the machine's source names none.
    """

    chosen: str | None
    gpus: tuple[int, ...]
    source: str
    ranked: tuple[Fit, ...]
    rejected: tuple[Fit, ...]
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    advice: tuple[str, ...] = ()
    by_card: tuple[str, ...] = ()

    def find(self, profile: str) -> Fit:
        """Return what was found for `profile`. Raises KeyError."""
        for fit in (*self.ranked, *self.rejected):
            if fit.profile == profile:
                return fit
        raise KeyError(profile)

    def required(self) -> str:
        """Return the chosen profile's name. Raises CheckError where nothing may be started."""
        if self.chosen is None:
            raise CheckError(str(self.problem))
        return self.chosen

    def to_json(self) -> dict[str, Any]:
        """The selection as JSON: why the chosen one, and for each other one why not."""
        return {
            "chosen": self.chosen,
            "gpus": list(self.gpus),
            "source": self.source,
            "warnings": list(self.warnings),
            "problem": self.problem,
            "advice": list(self.advice),
            "by_card": list(self.by_card),
            "ranked": [_fit_json(fit) for fit in self.ranked],
            "rejected": [_fit_json(fit) for fit in self.rejected],
        }


def assess(
    machine: Machine,
    profiles: Iterable[Profile],
    checkpoint: Checkpoint | None = None,
    *,
    pinned: str | None = None,
    force: bool = False,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    num_speculative_tokens: int | None = None,
    platform: str = AUTO,
) -> Selection:
    """Judge every profile and choose one.

    `pinned` names the one that a person wants: it is chosen where it fits, or with `force` in spite of its reasons,
    which then become warnings. Without it the most preferred that fits is chosen. `arguments`, `environment` and
    `num_speculative_tokens` are what stands over the profiles' own values (see `plan_memory`); `platform` is the
    setting vllm_platform (see appliance.profiles.rehearsal).
    Raises ConfigurationError for a pinned name that is not among `profiles`.
    """
    ordered = sorted(profiles, key=lambda profile: (profile.rank, profile.name))
    known = [profile.name for profile in ordered]
    if pinned is not None and pinned not in known:
        raise ConfigurationError(f'no profile "{pinned}"{nearest(pinned, known)} (known: {", ".join(known)})')

    def choose(on: Machine, *, forced: bool = False) -> Selection:
        fits = [
            Judge(on, profile, checkpoint, arguments, environment, num_speculative_tokens, platform).fit(
                profile.name == pinned
            )
            for profile in ordered
        ]
        return _choose(on, fits, pinned, force=forced)

    return _with_ways_on(machine, choose(machine, forced=force), choose, pinned)


def _choose(machine: Machine, fits: list[Fit], pinned: str | None, *, force: bool) -> Selection:
    good = [fit for fit in fits if fit.fits]
    bad = tuple(fit for fit in fits if not fit.fits)
    wanted = next((fit for fit in fits if fit.profile == pinned), None)
    if wanted is None:
        if not good:
            return Selection(None, (), "best fit", (), bad, problem=_nothing_fits(bad))
        chosen, source, warnings = good[0], "best fit", good[0].warnings + _idle(machine, good[0])
    elif wanted.fits:
        chosen, source, warnings = wanted, "pinned", wanted.warnings + _idle(machine, wanted)
    elif force:
        chosen, source = wanted, "forced"
        warnings = tuple(f"forced although {reason}" for reason in wanted.reasons) + wanted.warnings
    else:
        problem = (
            f"profile {wanted.profile} does not fit this machine: {'; '.join(wanted.reasons)} "
            "(APPLIANCE_FORCE=1 starts it all the same)"
        )
        return Selection(None, (), "pinned", tuple(good), bad, problem=problem)
    others = tuple(
        fit if fit.profile == chosen.profile else replace(fit, reasons=(_not_preferred(source, chosen.profile),))
        for fit in good
    )
    return Selection(chosen.profile, chosen.gpus, source, others, bad, warnings)


def _with_ways_on(machine: Machine, found: Selection, choose: ways_on.Choose, pinned: str | None) -> Selection:
    if found.chosen is not None:
        # A forced start has taken GPUs that do not fit together: what is left of them says little.
        further = ways_on.further_instances(machine, found.gpus, choose) if found.source != "forced" else ()
        return replace(found, advice=tuple(further)) if found.gpus else found
    if by_card := ways_on.by_card(machine, choose):
        answer = "; ".join(by_card)
        decides = "save `nvidia-smi -q -x` beside it, with the suffix .xml, for one answer"
        return replace(found, problem=f"nothing names this machine's cards: {answer}; {decides}", by_card=by_card)
    asked = [fit for fit in found.rejected if pinned in (None, fit.profile)]
    advice = ways_on.past_links(machine, asked)
    return replace(found, problem=f"{found.problem} | {'; '.join(advice)}", advice=advice) if advice else found


def _not_preferred(source: str, chosen: str) -> str:
    return f"fits, but {chosen} is {'preferred' if source == 'best fit' else source}"


def _nothing_fits(rejected: tuple[Fit, ...]) -> str:
    each = " | ".join(f"{fit.profile}: {'; '.join(fit.reasons)}" for fit in rejected)
    return f"no profile fits this machine and model: {each}"


def _idle(machine: Machine, chosen: Fit) -> tuple[str, ...]:
    idle = [gpu.index for gpu in machine.gpus if gpu.index not in chosen.gpus]
    return (f"{gpu_names(idle)} stay{'s' if len(idle) == 1 else ''} idle",) if idle and chosen.gpus else ()


def _fit_json(fit: Fit) -> dict[str, Any]:
    memory = fit.memory.to_json() if fit.memory else None
    return {**asdict(replace(fit, memory=None)), "memory": memory}
