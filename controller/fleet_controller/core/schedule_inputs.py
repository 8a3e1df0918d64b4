"""Holds the inputs of a scheduling decision: the waiting trials of each job, and what each host
could take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_controller.core.job import HostChoice
from fleet_controller.core.trial_state import Trial
from fleet_protos.trial_types import EngineKind

Block = Sequence[Trial]


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """The trials of one job that may begin, in plan order.

    - `pinned`: trials that already have a host, by the host that serves.
    - `blocks`: blocks that no host has begun yet.
    - `choice`: the hosts to which a block may go.
    - `hosts_used`: hosts that already have trials of the job.
    - `host_time_s`, `trial_s`: the job's host time and the expected host seconds of one more trial;
      see `core.fairness`.
    """

    job_id: str
    pinned: Mapping[str, Sequence[Trial]] = field(default_factory=dict)
    blocks: Sequence[Block] = ()
    choice: HostChoice = field(default_factory=HostChoice)
    hosts_used: frozenset[str] = frozenset()
    priority: int = 0
    host_time_s: float = 0.0
    trial_s: float = 60.0

    def may_use(self, hosts: Mapping[str, object]) -> bool:
        """Return False only if certainly no trial of the job could begin on any of these hosts or
        reserve any of them. This check is quick, because there are many jobs.
        """
        if self.blocks:
            return True
        return bool(self.pinned) and (
            not self.pinned.keys().isdisjoint(hosts)
            or bool(next(iter(self.pinned.values()))[0].nodes)
        )


@dataclass(frozen=True, slots=True)
class SchedulableHost:
    """A host at the moment of a scheduling decision.

    - `closed_reason`: why the host gets no trials now; empty if it may get trials.
    - `running`: number of trials on the host.
    - `allows_sharing`: whether all trials on the host may share it.
    - `gpus`, `free_gpus`: by engine kind; a kind that is missing is not limited.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    closed_reason: str = ""
    running: int = 0
    allows_sharing: bool = False
    gpus: Mapping[EngineKind, int] = field(default_factory=dict)
    free_gpus: Mapping[EngineKind, int] = field(default_factory=dict)
    can_lend_load: bool = True  # it may send load for other hosts now
    no_load_reason: str = ""  # why it could not send load even if nothing ran there


def waiting_job_of(
    job_id: str, trials: Iterable[Trial], choice: HostChoice | None = None, **rest: float
) -> WaitingJob:
    """Return the WaitingJob for these trials, which must be in plan order."""
    pinned: dict[str, list[Trial]] = {}
    blocks: dict[int, list[Trial]] = {}
    trials = list(trials)
    for trial in trials:
        if trial.may_start and trial.spec.host:
            pinned.setdefault(trial.spec.host, []).append(trial)
        elif trial.may_start:
            blocks.setdefault(trial.spec.block, []).append(trial)
    hosts_used = frozenset(trial.spec.host for trial in trials if trial.spec.host)
    return WaitingJob(
        job_id,
        pinned,
        list(blocks.values()),
        choice or HostChoice(),
        hosts_used,
        **rest,  # type: ignore[arg-type] # numbers only
    )


def waiting_reason(job: WaitingJob, hosts: Mapping[str, SchedulableHost]) -> str:
    """Return the reason, other than busy hosts, that keeps a job's trials from starting, such as
    `gpu03 (drained: new kernel)`. Return an empty text if there is no such reason.

    A block that some host could take has no reason to wait. For a block that no host can take, all
    matching hosts are named.
    """
    needed = {
        name: len(trials) for name, trials in job.pinned.items() if _closed_reason(hosts.get(name))
    }
    gangs = {
        host
        for trials in job.pinned.values()
        for host in trials[0].hosts[1:]
        if _closed_reason(hosts.get(host))
    }
    reasons = [
        f"{name} ({_closed_reason(hosts.get(name))}; {_trials(count)})"
        for name, count in sorted(needed.items())
    ]
    reasons += [
        f"{name} ({_closed_reason(hosts.get(name))})" for name in sorted(gangs - needed.keys())
    ]
    reasons += [
        f"load host {name} ({why})"
        for name in _load_hosts(job)
        if (why := _no_load_reason(hosts.get(name)))
    ]
    if job.blocks:
        reasons += _block_reasons(job, hosts)
    return ", ".join(reasons)


def _block_reasons(job: WaitingJob, hosts: Mapping[str, SchedulableHost]) -> list[str]:
    matching = job.choice.matching({name: host.labels for name, host in hosts.items()})
    nodes = max(job.blocks[0][0].spec.engine.gang.nodes, 1)
    if sum(not hosts[name].closed_reason for name in matching) >= nodes:
        return []
    if len(matching) < nodes:
        return [
            "a host that matches the job" if nodes == 1 else f"{nodes} hosts that match the job"
        ]
    closed = [
        f"{name} ({hosts[name].closed_reason})" for name in matching if hosts[name].closed_reason
    ]
    return [" or ".join(closed)]


def _load_hosts(job: WaitingJob) -> list[str]:
    """Return every load host of the waiting trials. It is enough to look at first trials, because
    all trials of a plan have the same load hosts.
    """
    firsts = [*(trials[0] for trials in job.pinned.values()), *(block[0] for block in job.blocks)]
    return sorted({host for trial in firsts for host in trial.spec.load.hosts})


def _no_load_reason(host: SchedulableHost | None) -> str:
    return host.no_load_reason if host is not None else "not known to this controller"


def _closed_reason(host: SchedulableHost | None) -> str:
    return host.closed_reason if host is not None else "not known to this controller"


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"
