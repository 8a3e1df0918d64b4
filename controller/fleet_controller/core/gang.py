"""Makes a single trial of the nodes of a server over several hosts: the nodes' ids and addresses,
their combined attempts, and when all nodes must end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fleet_controller.core.job import Job
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.search_rules import max_runs
from fleet_protos.trial_types import (
    LoadPlan,
    Outcome,
    Phase,
    TrialSpec,
    Workload,
)
from fleet_protos.workload_rules import at_load

_MARK = "_n"  # job names and hosts in a trial id have no underscore
_FIRST_PORT, _PORTS = 20_000, 12_000  # below Linux's ephemeral ports, 32768 and above
LOOPBACK = "127.0.0.1"

# A crash without a cause may follow from another node's crash, so one with a cause comes first.
UNSPECIFIC = frozenset({"scheduler_crashed", "launch_crashed", "unknown"})

# How a node ends because another one ended: never the cause if another node has one.
CONSEQUENCES = frozenset(
    {
        "gang_hold_limit",
        "init_dist_timeout",
        "load_failed",
        "nccl_peer_lost",
        "nccl_timeout",
        "not_ready",
        "stalled_capture_graph",
        "stalled_init_dist",
        "stalled_load_weight",
        "watchdog_timeout",
    }
)


def member_id(lead_id: str, rank: int) -> str:
    """Return the trial id of a node that is not the lead, such as `TRIAL_n1`."""
    return f"{lead_id}{_MARK}{rank}"


def lead_and_rank(trial_id: str) -> tuple[str, int]:
    """Return the trial id of a gang's lead and the rank of a node. The rank is 0 for the lead and
    for every trial on one host.
    """
    lead, mark, rank = trial_id.rpartition(_MARK)
    return (lead, int(rank)) if mark and rank.isdecimal() else (trial_id, 0)


def member_specs(lead: TrialSpec, hosts: Sequence[str]) -> tuple[TrialSpec, ...]:
    """Return what the agents of the other hosts run together with the lead. These nodes have the
    ranks 1 and up, and nobody sends load to them.
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
    """Return the wall seconds after which the lead is certainly over by its own limits: launch, all
    runs with the slowest possible requests, and stop.
    """
    load_s = sum(_longest_s(workload, spec.measure.runs_max) for workload in spec.workloads)
    return spec.engine.ready_timeout_s + load_s + spec.engine.stop_timeout_s


def _longest_s(workload: Workload, runs_max: int) -> float:
    """Return the longest wall seconds for all runs of a workload, including its warm-up."""
    if search := workload.search if workload.search.of else None:
        return (1 + max_runs(search)) * _longest_run_s(at_load(workload, search.most))
    return (1 + runs_max) * _longest_run_s(workload)


def _longest_run_s(workload: Workload) -> float:
    waves = -(-workload.requests // workload.concurrency) if workload.concurrency else 1
    return workload.duration_s + max(waves, 1) * (
        workload.request_timeout_s + 10 * workload.think_s
    )


def meeting_host(address: str, label: str = "") -> str:
    """Return the address at which other hosts reach the host of an agent: its label `address`, or
    else the host in its gRPC address.

    Return the loopback address for a Unix socket and for this machine's own names. This is right if
    all agents are on one machine. It is wrong for other hosts if the agent is behind a tunnel.
    """
    if label:
        return f"[{label}]" if ":" in label and not label.startswith("[") else label
    if address.startswith("unix:"):
        return LOOPBACK
    host = re.sub(r"^(?:dns|ipv4|ipv6):(?://[^/]*/)?", "", address).rpartition(":")[0]
    return LOOPBACK if host in ("localhost", LOOPBACK, "[::1]", "0.0.0.0", "") else host


def spec_for_agent(spec: TrialSpec, attempt: int, lead_host: str) -> TrialSpec:
    """Return the spec of an attempt as its agent gets it. All nodes of a gang meet at `lead_host`,
    on a port that differs for each attempt.
    """
    gang = spec.engine.gang
    if gang.nodes < 2:
        return replace(spec, attempt=attempt)
    lead_id, _ = lead_and_rank(spec.trial_id)
    drawn = int.from_bytes(hashlib.sha256(f"{lead_id}/{attempt}".encode()).digest()[:4])
    gang = replace(gang, init_address=f"{lead_host}:{_FIRST_PORT + drawn % _PORTS}")
    return replace(spec, attempt=attempt, engine=replace(spec.engine, gang=gang))


# Nodes as one trial.


def fold_gangs(nodes: Iterable[Trial]) -> list[Trial]:
    """Return the trials in their order, with the nodes of each gang combined into one trial. Trials
    that were combined before stay as they are.
    """
    leads: list[Trial] = []
    members: dict[str, list[Trial]] = {}
    for node in nodes:
        lead_id, rank = lead_and_rank(node.spec.trial_id)
        (members.setdefault(lead_id, []) if rank else leads).append(node)
    return [fold_gang(lead, members.get(lead.spec.trial_id, ())) for lead in leads]


def fold_gang(lead: Trial, members: Sequence[Trial]) -> Trial:
    """Return the trial that a lead and its members make.

    The trial is over when all nodes are over. If the lead ended OK, the trial ended OK. Otherwise
    the trial failed with the cause of the node that failed first.
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
    last_ns = max(attempt.ended_unix_ns for _, attempt in ended)  # all by the controller's clock
    failures = [(node, attempt) for node, attempt in ended if attempt.outcome is Outcome.FAILED]
    if not failures:
        return replace(lead, ended_unix_ns=last_ns)
    node, cause = min(failures, key=lambda pair: _cause_order(pair[1]))
    cause_text = cause.message or cause.failure_class
    message = cause_text if node is nodes[0] else f"{_node_label(node)}: {cause_text}"
    if lead.outcome is Outcome.OK:
        # Everything was measured. A member may fail because its lead ended, but processes that it
        # left behind are reported.
        return replace(
            lead,
            message=message if cause.failure_class == "left_over_processes" else "",
            ended_unix_ns=last_ns,
        )
    failed = replace(
        cause, number=lead.number, agent_id=lead.agent_id, message=message, runs=lead.runs
    )
    return replace(failed, started_unix_ns=lead.started_unix_ns, ended_unix_ns=last_ns)


def _cause_order(failed: Attempt) -> tuple[int, int]:
    """Return a sort key that puts the cause of a gang's failure first. Failures are sorted by
    failure class, then by end time. End times are only as precise as the hosts' clocks are known.
    """
    failure_class = failed.failure_class
    return (
        2 if failure_class in CONSEQUENCES else 1 if failure_class in UNSPECIFIC else 0
    ), failed.ended_unix_ns


def _unfinished(lead: Attempt) -> Attempt:
    """Return the lead's attempt. If the lead is over but other nodes are not, return it in the
    phase `stopping`.
    """
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
    _, rank = lead_and_rank(node.spec.trial_id)
    return f"node {rank} on host {node.spec.host}"


def nodes_to_end(trial: Trial) -> Mapping[str, str]:
    """Return the nodes of an active gang that must end now, with the reason. All nodes must end
    once one node has ended or begun to end.

    The lead begins to end with its phase `stopping`, because its server is needed until then. A
    member begins to end with its phase `collecting`, because it has then lost or released its
    server.
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
    """Group the hosts in their order. Each group has as many hosts as one server takes: one, or
    `engine.nodes`. Hosts that do not fill a group are left out.
    """
    nodes = max(job.engine.gang.nodes, 1)
    return [
        tuple(hosts[first : first + nodes]) for first in range(0, len(hosts) - nodes + 1, nodes)
    ]
