"""Selects the hosts that send load for a job's trials, and decides how much of the load each host
sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fleet_controller.core.gang import hold_limit_s
from fleet_controller.core.job import Job
from fleet_controller.planning.host_selection import HostCandidate
from fleet_controller.yaml.findings import ERROR, Finding
from fleet_protos.trial_types import LoadPlan, TrialSpec

_MARGIN_S = 600.0  # for setting up the load hosts, preparing and collecting


def load_hosts_of(
    job: Job, candidates: Sequence[HostCandidate], hosts: Sequence[str]
) -> tuple[str, ...]:
    """Return the sorted names of the load hosts: all hosts that match and get no trials of the job.
    If the job gives neither names nor labels, all load-only hosts match.
    """
    if job.load is None:
        return ()
    choice = job.load.hosts
    by_flag = not choice.names and not choice.labels
    known = {
        host.name: host.labels
        for host in candidates
        if host.name not in hosts and (host.load_only or not by_flag)
    }
    return choice.matching(known)


def load_host_findings(
    job: Job, candidates: Sequence[HostCandidate], hosts: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding for each load host that the job asks for but cannot get."""
    if job.load is None:
        return
    known = {host.name for host in candidates}
    known_names = ", ".join(sorted(known))
    for place, name in enumerate(job.load.hosts.names):
        key = f"load.hosts.names[{place}]"
        if name not in known:
            yield job.finding(
                "unknown_host",
                ERROR,
                key,
                f"the fleet has no host `{name}`",
                f"the hosts are: {known_names}",
            )
        elif name in hosts:
            message = (
                f"host `{name}` gets trials of this job, "
                "and sending load from there would disturb its server"
            )
            yield job.finding(
                "load_host_has_trials",
                ERROR,
                key,
                message,
                "name another host, or keep this host out of `hosts`",
            )
    if not job.load.hosts.names and not load_hosts_of(job, candidates, hosts):
        message = (
            "no host can send the load: either no host matches `load.hosts`, "
            "or every matching host gets trials of this job"
        )
        hint = "set `load_only: true` for a host in the fleet file, or change `load.hosts`"
        yield job.finding("no_load_hosts", ERROR, "load.hosts", message, hint)
    if job.load.shards and len(load_hosts_of(job, candidates, hosts)) > job.load.shards:
        count = len(load_hosts_of(job, candidates, hosts))
        message = f"{job.load.shards} shards are too few for {count} load hosts"
        yield job.finding(
            "too_few_shards",
            ERROR,
            "load.shards",
            message,
            "raise `load.shards`, or choose fewer load hosts",
        )


def load_plan(job: Job, load_hosts: Sequence[str]) -> LoadPlan:
    """Return the load plan, which is the same for each trial of the job."""
    return LoadPlan(tuple(load_hosts), job.load.shards) if job.load and load_hosts else LoadPlan()


def shards_per_host(load: LoadPlan) -> Mapping[str, int]:
    """Return how many shards each load host runs. The shards are dealt out to the hosts in turn."""
    shards = load.shards or len(load.hosts)
    count = len(load.hosts)
    return {host: (shards - place + count - 1) // count for place, host in enumerate(load.hosts)}


def load_host_limit_s(spec: TrialSpec) -> float:
    """Return the wall seconds after which a load host leaves without an order. By then, the attempt
    is over by its own limits.
    """
    witness_s = spec.engine.ready_timeout_s + spec.engine.stop_timeout_s if spec.witness else 0.0
    return hold_limit_s(spec) + witness_s + _MARGIN_S
