"""Decides which trials start next, on which hosts and in what order. Decides also which trials
never start.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet_controller.core.job import HostChoice
from fleet_controller.core.retry import rule_for
from fleet_controller.core.schedule_inputs import Block, SchedulableHost, WaitingJob
from fleet_controller.core.trial_state import Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome


@dataclass(frozen=True, slots=True)
class TrialStart:
    """The order to begin an attempt of a trial on its host, together with the attempts of its other
    nodes.

    - `members`: the other nodes, each as (trial id, host).
    - `block`: all trials that this start assigns to these hosts, including its own trial; empty if
      they were assigned before.
    """

    trial_id: str
    attempt: int
    host: str
    members: tuple[tuple[str, str], ...] = ()
    block: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HopelessTrial:
    """A trial that is never launched, because its variant failed for good on its host."""

    trial_id: str
    kind: ErrorKind
    failure_class: str
    message: str


def hopeless_trials(trials: Sequence[Trial]) -> tuple[HopelessTrial, ...]:
    """Return the trials of a job that must be closed without a launch, because their variant failed
    for good in another block on their host.

    For a block that may go to any host, a failure on any host counts, unless only that host was to
    blame.
    """
    return tuple(_find_hopeless_trials(trials))


def _find_hopeless_trials(trials: Sequence[Trial]) -> Iterator[HopelessTrial]:
    failed_for_good: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        if trial.newest is not None and trial.newest.failed_for_good:
            failed_for_good.setdefault((trial.spec.host, trial.spec.variant), trial)
            if trial.newest.kind is not ErrorKind.DEPLOY_FAILED:
                failed_for_good.setdefault(("", trial.spec.variant), trial)
    for trial in trials if failed_for_good else ():
        cause = failed_for_good.get((trial.spec.host, trial.spec.variant))
        if cause is not None and cause.newest is not None and not trial.attempts:
            why = cause.newest
            failed, block = cause.spec.trial_id, cause.spec.block
            reason = why.message or why.failure_class
            message = (
                f"not launched again, because trial {failed} of block {block} failed: {reason}"
            )
            yield HopelessTrial(trial.spec.trial_id, why.kind, why.failure_class, message)


def next_starts(
    jobs: Iterable[WaitingJob], hosts: Iterable[SchedulableHost], now_unix_ns: int
) -> tuple[TrialStart, ...]:
    """Return which attempts to begin now on open hosts. `jobs` must be sorted by age, the oldest
    first. They are served by priority, then by smallest host time, then by age.

    A host runs one trial. A second trial would use the same CPUs and links and so disturb the
    measurement of the first, even on other GPUs. Only trials that allow sharing run together on a
    host.

    If the next trial of a job waits for hosts, jobs behind it do not get these hosts. A gang keeps
    the free hosts until all its hosts are free. A trial that needs a host alone keeps a host that
    other trials share. No trial waits for closed hosts.
    """
    capacity = _Capacity(hosts)
    if not capacity.open:
        return ()
    able = ((place, job) for place, job in enumerate(jobs) if job.may_use(capacity.open))
    turns = [
        (-job.priority, job.host_time_s, place, job, _offers(job, capacity, now_unix_ns))
        for place, job in able
    ]
    heapq.heapify(turns)
    starts: list[TrialStart] = []
    while turns and capacity.open:
        urgency, host_time_s, place, job, offers = turns[0]
        offer = next(offers, None)
        if offer is None:
            heapq.heappop(turns)
            continue
        start, trial = offer
        taken = (start.host, *(host for _, host in start.members))
        for host in taken:
            capacity.reserve(host, trial)
        starts.append(start)
        heapq.heapreplace(
            turns, (urgency, host_time_s + job.trial_s * len(taken), place, job, offers)
        )
    return tuple(starts)


_Offer = tuple[TrialStart, Trial]


class _Capacity:
    """The hosts that can still be assigned during one scheduling decision. `open` holds by name the
    hosts that may take a trial.
    """

    def __init__(self, hosts: Iterable[SchedulableHost]) -> None:
        self.known = {host.name: host for host in hosts}
        there = (
            host
            for host in self.known.values()
            if not host.closed_reason and (not host.running or host.allows_sharing)
        )
        self.open: dict[str, bool] = {  # whether the host is empty
            host.name: not host.running for host in sorted(there, key=lambda host: host.name)
        }
        self._taken: dict[str, int] = {}
        self._lending = {
            host.name
            for host in self.known.values()
            if host.can_lend_load and not host.no_load_reason
        }

    def is_lendable(self, trial: Trial) -> bool:
        """Return whether each load host of the trial may send load, now or when it is free."""
        lenders = [self.known.get(host) for host in trial.spec.load.hosts]
        return all(lender is not None and not lender.no_load_reason for lender in lenders)

    def is_up(self, host: str) -> bool:
        """Return whether the host takes trials, now or when it is free."""
        known = self.known.get(host)
        return known is not None and not known.closed_reason

    def fits(self, host: str, trial: Trial) -> bool:
        """Return whether the trial could begin on the host now."""
        is_empty = self.open.get(host)
        if not self._lending.issuperset(trial.spec.load.hosts):
            return False
        if is_empty is None or not (is_empty or trial.spec.shared):
            return False
        # A host without enough GPUs is accepted if it is empty: the trial then fails at its start
        # with that reason.
        if not trial.spec.shared or (is_empty and not _is_large_enough(self.known[host], trial)):
            return True
        left = self.known[host].free_gpus.get(trial.spec.engine.kind, math.inf) - self._taken.get(
            host, 0
        )
        return trial.spec.engine.gpus <= left

    def capable_hosts(self, choice: HostChoice, trial: Trial) -> list[str]:
        """Return the names of the hosts that match and could take the trial when they are free."""
        return [
            name
            for name, host in self.known.items()
            if not host.closed_reason
            and choice.matches(name, host.labels)
            and _is_large_enough(host, trial)
        ]

    def reserve(self, host: str, trial: Trial) -> None:
        """Assign the host to the trial, and keep the trial's load hosts from all other trials."""
        self._lending -= {host, *trial.spec.load.hosts}
        for lender in trial.spec.load.hosts:
            self.open.pop(lender, None)
        if trial.spec.shared:
            self.open[host] = False
            self._taken[host] = self._taken.get(host, 0) + trial.spec.engine.gpus
        else:
            del self.open[host]

    def hold_back(self, hosts: Iterable[str]) -> None:
        """Keep these hosts for a trial that waits for them, so that no job behind it gets them."""
        for host in hosts:
            self.open.pop(host, None)
            self._lending.discard(host)


def _offers(job: WaitingJob, capacity: _Capacity, now_unix_ns: int) -> Iterator[_Offer]:
    """Yield the starts that the job could make, one after the other. Each start is valid at the
    moment when it is yielded.
    """
    if any(trials[0].nodes for trials in itertools.islice(job.pinned.values(), 1)):
        yield from _gangs(job.pinned, capacity, now_unix_ns)
    else:
        for host in list(capacity.open):
            yield from _on_host(host, job.pinned.get(host, ()), capacity, now_unix_ns)
    for block in job.blocks:
        offer = _block(job, block, capacity)
        if offer is None:  # another block would not fit either
            return
        yield offer


def _on_host(
    host: str, trials: Sequence[Trial], capacity: _Capacity, now_unix_ns: int
) -> Iterator[_Offer]:
    for trial in trials:
        if host not in capacity.open:
            return
        if pause_left_s(trial, now_unix_ns) > 0 or not capacity.is_lendable(trial):
            continue
        if not capacity.fits(host, trial):
            capacity.hold_back([host, *trial.spec.load.hosts])
            return
        yield _trial_start(trial), trial


def _gangs(
    pinned: Mapping[str, Sequence[Trial]], capacity: _Capacity, now_unix_ns: int
) -> Iterator[_Offer]:
    for trials in pinned.values():
        trial = next((trial for trial in trials if pause_left_s(trial, now_unix_ns) <= 0), None)
        if (
            trial is None
            or not all(map(capacity.is_up, trial.hosts))
            or not capacity.is_lendable(trial)
        ):
            continue
        if all(capacity.fits(host, trial) for host in trial.hosts):
            yield _trial_start(trial), trial
        else:
            capacity.hold_back((*trial.hosts, *trial.spec.load.hosts))


def _block(job: WaitingJob, block: Block, capacity: _Capacity) -> _Offer | None:
    """Return the start of the first trial of a block that no host has begun. Hosts that other
    trials of the job use are preferred, and then hosts are taken by name.
    """
    largest, nodes = max(block, key=lambda trial: trial.spec.engine.gpus), len(block[0].hosts)
    if not capacity.open or not capacity.is_lendable(largest):
        return None
    able = capacity.capable_hosts(job.choice, largest)
    now = [host for host in able if capacity.fits(host, largest)]
    if len(now) < nodes:
        capacity.hold_back(
            [host for host in able if host in capacity.open][:nodes] if len(able) >= nodes else ()
        )
        return None
    lead, *others = sorted(now, key=lambda host: (host not in job.hosts_used, host))[:nodes]
    members = tuple(
        (node.spec.trial_id, host) for node, host in zip(block[0].nodes[1:], others, strict=True)
    )
    return TrialStart(
        block[0].spec.trial_id, 1, lead, members, tuple(trial.spec.trial_id for trial in block)
    ), block[0]


def _is_large_enough(host: SchedulableHost, trial: Trial) -> bool:
    return trial.spec.engine.gpus <= host.gpus.get(trial.spec.engine.kind, math.inf)


def _trial_start(trial: Trial) -> TrialStart:
    members = tuple((node.spec.trial_id, node.spec.host) for node in trial.nodes[1:])
    return TrialStart(trial.spec.trial_id, len(trial.attempts) + 1, trial.spec.host, members)


def pause_left_s(trial: Trial, now_unix_ns: int) -> float:
    """Return the seconds until the trial may be tried again.

    Return 0 for a trial that has not failed. Return 0 also if the clock of its host and the
    controller's clock are far apart.
    """
    newest = trial.newest
    if newest is None or newest.outcome is not Outcome.FAILED:
        return 0.0
    pause_s = rule_for(newest.kind).pause_s
    since_s = (now_unix_ns - newest.ended_unix_ns) / 1e9
    return max(0.0, pause_s - since_s) if since_s >= -pause_s else 0.0


def remaining_s(trials: Sequence[Trial], planned_s: float) -> float:
    """Return the wall seconds that a job's trials still need. Each unfinished trial counts the
    median of the finished attempts, and hosts work in parallel.

    Before an attempt has finished, return `planned_s`, the plan's estimate. Blocks that no host has
    begun are divided among the hosts that the job already uses.
    """
    took_s = sorted(
        (attempt.ended_unix_ns - attempt.started_unix_ns) / 1e9
        for trial in trials
        for attempt in trial.attempts
        if attempt.outcome is Outcome.OK and attempt.started_unix_ns
    )
    if not took_s:
        return planned_s
    waiting: dict[str, int] = {}
    for trial in trials:
        if trial.is_active or trial.may_start:
            waiting[trial.spec.host] = waiting.get(trial.spec.host, 0) + 1
    floating = waiting.pop("", 0)
    hosts = len({trial.spec.host for trial in trials if trial.spec.host}) or 1
    return took_s[len(took_s) // 2] * max(
        max(waiting.values(), default=0), -(-sum((*waiting.values(), floating)) // hosts)
    )
