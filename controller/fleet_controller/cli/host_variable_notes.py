"""Says which variables the servers of a job got from their hosts, from the agents' own events."""

from __future__ import annotations

from fleet_controller.core.controller_api import Controller, JobDetail, TrialStatus
from fleet_controller.core.job import Job
from fleet_controller.planning.variants import make_variants
from fleet_protos.events import TrialAccepted

_MOST_LOOKUPS = 64


async def host_variables(controller: Controller, detail: JobDetail, job: Job) -> dict[str, str]:
    """Return `NAME=VALUE` → where it applied, for variables that agents added to those of the job.

    One trial of each variant on each host is looked up, at most 64 trials.
    """
    variants = {variant.name: variant.engine.env for variant in make_variants(job)}
    found: dict[str, list[TrialStatus]] = {}
    for trial in _one_of_each(detail)[:_MOST_LOOKUPS]:
        events = (await controller.trial(trial.trial_id, trial.attempt, False)).events
        for event in events:
            if isinstance(event.body, TrialAccepted):
                own = variants.get(trial.variant, {})
                for name, value in event.body.spec.engine.env.items():
                    if name not in own:
                        found.setdefault(f"{name}={value}", []).append(trial)
    return {variable: _where(trials, len(variants)) for variable, trials in sorted(found.items())}


def host_variable_notes(found: dict[str, str]) -> tuple[str, ...]:
    """Return a line for each variable that came from hosts."""
    return tuple(f"{variable} came from {where}" for variable, where in found.items())


def host_variable_differences(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Return a line for each variable that came from hosts in one of two jobs only."""
    return tuple(
        f"only in the {which} job, {variable} came from {ours[variable]}"
        for which, ours, theirs in (("first", before, after), ("second", after, before))
        for variable in ours
        if variable not in theirs
    )


def _one_of_each(detail: JobDetail) -> list[TrialStatus]:
    firsts: dict[tuple[str, str], TrialStatus] = {}
    for trial in detail.trials:
        if trial.attempt:
            firsts.setdefault((trial.host, trial.variant), trial)
    return list(firsts.values())


def _where(trials: list[TrialStatus], variants: int) -> str:
    hosts = ", ".join(sorted({trial.host for trial in trials}))
    names = sorted({trial.variant for trial in trials})
    return f"host {hosts}" + ("" if len(names) == variants else f", for {', '.join(names)}")
