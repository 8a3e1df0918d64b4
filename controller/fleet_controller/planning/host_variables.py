"""Names the variables that servers of a job get from their hosts, and not from the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fleet_controller.core.inventory import FleetHost
from fleet_controller.core.job import Job
from fleet_controller.planning.variants import Variant
from fleet_controller.yaml.findings import INFO, Finding
from fleet_protos.trial_types import EngineKind

_MAX_NAMED = 5


def host_variable_findings(
    job: Job, variants: Sequence[Variant], hosts: Iterable[FleetHost]
) -> tuple[Finding, ...]:
    """Return a finding for each variable of the hosts that some variant does not set itself."""
    if job.engine.kind is EngineKind.EXTERNAL:
        return ()
    found: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        for name, value in host.env.items():
            found.setdefault((name, value), []).append(host.name)
    return tuple(_findings(job, variants, found))


def _findings(
    job: Job, variants: Sequence[Variant], found: dict[tuple[str, str], list[str]]
) -> Iterator[Finding]:
    for (name, value), hosts in sorted(found.items()):
        getting = [
            variant.name
            for variant in variants
            if name not in variant.engine.env and name not in variant.engine.env_removed
        ]
        if getting:
            who = "every variant gets" if len(getting) == len(variants) else f"{getting[0]} gets"
            yield job.finding(
                "host_variable",
                INFO,
                "engine.env",
                f"{who} {name}={value} from host {_names(hosts)}",
                f"`env: {{{name}: null}}` leaves it out, `env: {{{name}: …}}` replaces it",
            )


def _names(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MAX_NAMED
    return ", ".join(hosts[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
