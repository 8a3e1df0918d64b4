"""Owns how the hosts of one server make one trial: names, the meeting place, the fold of their
attempts, who has to end. Ends nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fleet_controller.core.job import Job
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import (
    LoadPlan,
    Outcome,
    Phase,
    TrialSpec,
    Workload,
)

_MARK = "_n"  # job names and hosts in a trial id have no underscore
_FIRST_PORT, _PORTS = (
    20_000,
    12_000,
)  # below the range that Linux gives out by itself, 32768 and above
LOOPBACK = "127.0.0.1"

# A crash that names no cause may have followed from another node's; one that names its own comes
# before it.
UNSPECIFIC = frozenset({"scheduler_crashed", "launch_crashed", "unknown"})

# How a node ends because another one did: never the cause while another node names one.
CONSEQUENCES = frozenset({
    "nccl_peer_lost", "nccl_timeout", "init_dist_timeout", "watchdog_timeout", "load_failed", "not_ready", "stalled_init_dist",
    "stalled_load_weight", "stalled_capture_graph", "gang_hold_limit",
})  # fmt: skip


def member_id(lead_id: str, rank: int) -> str:
    """The trial id of a node that is not the lead: `TRIAL_n1`."""
    return f"{lead_id}{_MARK}{rank}"


def lead_and_rank(trial_id: str) -> tuple[str, int]:
    """(id of the gang's trial, rank) of a node; rank 0 for the lead and for every trial on one
    host.
    """
    lead, mark, rank = trial_id.rpartition(_MARK)
    return (lead, int(rank)) if mark and rank.isdecimal() else (trial_id, 0)


def member_specs(lead: TrialSpec, hosts: Sequence[str]) -> tuple[TrialSpec, ...]:
    """What the agents of the other hosts carry out beside `lead`: rank 1 and up, no load of their
    own.
    """
    gang = lead.engine.gang
    return tuple(
        replace(
            lead,
            trial_id=member_id(lead.trial_id, rank),
            host=host,
            workloads=(),
            load=LoadPlan(),
            files=(),
            engine=replace(lead.engine, gang=replace(gang, rank=rank)),
        )
        for rank, host in enumerate(hosts, start=1)
    )


def hold_limit_s(spec: TrialSpec) -> float:
    """Wall seconds after which the lead must be over by its own limits: all launches, runs and
    requests as slow as they may be.
    """
    load_s = sum(_longest_s(workload, spec.measure.runs_max) for workload in spec.workloads)
    return spec.engine.ready_timeout_s + load_s + spec.engine.stop_timeout_s


def _longest_s(workload: Workload, runs_max: int) -> float:
    """Of all runs of a workload, with its warm-up."""
    if search := workload.search if workload.search.of else None:
        return (1 + search.max_runs) * _longest_run_s(workload.at_load(search.most))
    return (1 + runs_max) * _longest_run_s(workload)


def _longest_run_s(workload: Workload) -> float:
    waves = -(-workload.requests // workload.concurrency) if workload.concurrency else 1
    return workload.duration_s + max(waves, 1) * (
        workload.request_timeout_s + 10 * workload.think_s
    )


def meeting_host(address: str, label: str = "") -> str:
    """Where other hosts reach the host of an agent: its label `address`, else the host of its gRPC
    address.

    Loopback for a Unix socket and for this machine's own names: right for agents on one machine,
    and no use to others behind a tunnel.
    """
    if label:
        return f"[{label}]" if ":" in label and not label.startswith("[") else label
    if address.startswith("unix:"):
        return LOOPBACK
    host = re.sub(r"^(?:dns|ipv4|ipv6):(?://[^/]*/)?", "", address).rpartition(":")[0]
    return LOOPBACK if host in ("localhost", LOOPBACK, "[::1]", "0.0.0.0", "") else host


def spec_for_agent(spec: TrialSpec, attempt: int, lead_host: str) -> TrialSpec:
    """The attempt as its agent gets it. All nodes meet at `lead_host`; the port is drawn anew for
    each attempt.
    """
    gang = spec.engine.gang
    if gang.nodes < 2:
        return replace(spec, attempt=attempt)
    lead_id, _ = lead_and_rank(spec.trial_id)
    drawn = int.from_bytes(hashlib.sha256(f"{lead_id}/{attempt}".encode()).digest()[:4])
    gang = replace(gang, init_address=f"{lead_host}:{_FIRST_PORT + drawn % _PORTS}")
    return replace(spec, attempt=attempt, engine=replace(spec.engine, gang=gang))


# Nodes as one trial


def fold_gangs(nodes: Iterable[Trial]) -> list[Trial]:
    """The trials in their order, with the nodes of each gang as one; what is folded stays as it is."""
    leads: list[Trial] = []
    members: dict[str, list[Trial]] = {}
    for node in nodes:
        lead_id, rank = lead_and_rank(node.spec.trial_id)
        (members.setdefault(lead_id, []) if rank else leads).append(node)
    return [fold_gang(lead, members.get(lead.spec.trial_id, ())) for lead in leads]


def fold_gang(lead: Trial, members: Sequence[Trial]) -> Trial:
    """The trial that a lead and its members make: over when all are, OK when the lead is, failed
    with the cause of who failed first.
    """
    if not members:
        return lead
    nodes = (lead, *members)
    return Trial(
        lead.spec, tuple(_fold_attempt(nodes, attempt) for attempt in lead.attempts), nodes
    )


def _fold_attempt(nodes: Sequence[Trial], lead: Attempt) -> Attempt:
    ended = list(_attempts(nodes, lead.number))
    if not all(attempt.is_over for _, attempt in ended):
        return _unfinished(lead)
    last_ns = max(
        attempt.ended_unix_ns for _, attempt in ended
    )  # by one clock, whatever those of the hosts show
    failures = [(node, attempt) for node, attempt in ended if attempt.outcome is Outcome.FAILED]
    if not failures:
        return replace(lead, ended_unix_ns=last_ns)
    node, cause = min(failures, key=lambda pair: _lateness(pair[1]))
    cause_text = cause.message or cause.failure_class
    message = cause_text if node is nodes[0] else f"{_node_label(node)}: {cause_text}"
    if (
        lead.outcome is Outcome.OK
    ):  # all was measured: a member may follow its lead's end, but must not leave anything behind
        return replace(
            lead,
            message=message if cause.failure_class == "left_over_processes" else "",
            ended_unix_ns=last_ns,
        )
    failed = replace(
        cause, number=lead.number, agent_id=lead.agent_id, message=message, runs=lead.runs
    )
    return replace(failed, started_unix_ns=lead.started_unix_ns, ended_unix_ns=last_ns)


def _lateness(failed: Attempt) -> tuple[int, int]:
    """The first is the cause: by what the class says, then by the end, as near as the clocks of
    hosts are known.
    """
    failure_class = failed.failure_class
    return (
        2 if failure_class in CONSEQUENCES else 1 if failure_class in UNSPECIFIC else 0
    ), failed.ended_unix_ns


def _unfinished(lead: Attempt) -> Attempt:
    """The lead's own progress, or stopping when it is over and others are not."""
    if not lead.is_over:
        return lead
    undecided = replace(
        lead, outcome=Outcome.UNSPECIFIED, kind=ErrorKind.NONE, failure_class="", message=""
    )
    return replace(undecided, phase=Phase.STOPPING, ended_unix_ns=0)


def _attempts(nodes: Sequence[Trial], number: int) -> Iterator[tuple[Trial, Attempt]]:
    for node in nodes:
        yield from ((node, attempt) for attempt in node.attempts if attempt.number == number)


def _node_label(node: Trial) -> str:
    return f"node {lead_and_rank(node.spec.trial_id)[1]} on host {node.spec.host}"


def nodes_to_end(trial: Trial) -> Mapping[str, str]:
    """The nodes of an active gang that must end now, with the reason: all, as soon as one has ended
    or begun to.

    The lead's server is needed until it is being stopped; a member that collects its evidence has
    lost its server or let it go.
    """
    if not trial.nodes or trial.newest is None:
        return {}
    now = list(_attempts(trial.nodes, trial.newest.number))
    ended = [
        node
        for node, attempt in now
        if attempt.phase >= (Phase.COLLECTING if node is not trial.nodes[0] else Phase.STOPPING)
    ]
    if not ended:
        return {}
    reason = f"{_node_label(ended[0])} of this server has ended"
    return {node.spec.trial_id: reason for node, attempt in now if attempt.phase < Phase.COLLECTING}


def gangs_of(job: Job, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """The hosts in their order, as many together as one server takes: one each, or `engine.nodes`.
    What is left over is in none.
    """
    nodes = max(job.engine.gang.nodes, 1)
    return [
        tuple(hosts[first : first + nodes]) for first in range(0, len(hosts) - nodes + 1, nodes)
    ]
