"""Selects the hosts of a job, and explains why a job gets no host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from fleet_controller.core.job import Job
from fleet_controller.yaml.findings import ERROR, Finding

_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class HostCandidate:
    """A host at the moment of a submit. If `in_file` is set, the host is in the fleet file, and
    trials may wait for it.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    connected: bool = True
    in_file: bool = False
    load_only: bool = False

    def may_be_planned(self, only_connected: bool) -> bool:
        """Return whether the host may get trials, now or when it connects."""
        return not self.load_only and (self.connected or (self.in_file and not only_connected))


def choose_hosts(
    job: Job, candidates: Sequence[HostCandidate], only_connected: bool = False
) -> tuple[str, ...]:
    """Return the sorted names of the hosts that the job runs on."""
    return job.hosts.matching(
        {host.name: host.labels for host in candidates if host.may_be_planned(only_connected)}
    )


def host_choice_findings(
    job: Job, candidates: Sequence[HostCandidate], only_connected: bool = False
) -> Iterator[Finding]:
    """Yield a finding for each host or label that the job asks for and that does not exist."""
    known = {host.name: host for host in candidates}
    for place, name in enumerate(job.hosts.names):
        yield from _name_findings(job, f"hosts.names[{place}]", name, known)
    if job.hosts.names or choose_hosts(job, candidates, only_connected):
        return
    yield from _label_findings(job, candidates, only_connected)


def _name_findings(
    job: Job, key: str, name: str, known: Mapping[str, HostCandidate]
) -> Iterator[Finding]:
    host = known.get(name)
    if host is None:
        near = get_close_matches(name, list(known), n=1)
        known_names = f"the hosts are: {_join_some(sorted(known))}"
        hint = f"did you mean `{near[0]}`?" if near else known_names
        yield job.finding("unknown_host", ERROR, key, f"the fleet has no host `{name}`", hint)
    elif host.load_only:
        message = f"host `{name}` only sends load and gets no trials"
        yield job.finding(
            "load_only_host",
            ERROR,
            key,
            message,
            "choose another host, or remove `load_only` from this host in the fleet file",
        )


def _label_findings(
    job: Job, candidates: Sequence[HostCandidate], only_connected: bool
) -> Iterator[Finding]:
    """Yield a finding for the first label that no host has. If there is none, yield a finding if no
    connected host has all labels.
    """
    hosts = [host for host in candidates if not host.load_only]
    for name, value in job.hosts.labels.items():
        values = sorted({host.labels[name] for host in hosts if name in host.labels})
        if value not in values:
            others = sorted({key for host in hosts for key in host.labels})
            known_values, known_labels = _join_some(values), _join_some(others)
            hint = (
                f"the values of {name} on the hosts are: {known_values}"
                if values
                else f"the hosts have the labels: {known_labels}"
            )
            yield job.finding(
                "no_such_label",
                ERROR,
                f"hosts.labels.{name}",
                f"no host has the label {name}: {value}",
                hint,
            )
            return
    if only_connected and choose_hosts(job, candidates):
        message = "no host that matches the job is connected now"
        yield job.finding(
            "no_hosts",
            ERROR,
            "hosts",
            message,
            "`fleetctl hosts ls` shows why; without --only-connected, the trials wait for a host",
        )


def _join_some(words: Sequence[str]) -> str:
    if not words:
        return "none"
    more = f" and {len(words) - _MOST_SHOWN} more" if len(words) > _MOST_SHOWN else ""
    return ", ".join(words[:_MOST_SHOWN]) + more
