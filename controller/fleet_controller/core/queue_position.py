"""Says for each job without a running trial which jobs occupy its hosts and how many jobs are
served before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_controller.core.schedule_inputs import SchedulableHost, WaitingJob

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job without a running trial, with the hosts on which its trials may begin."""

    job_id: str
    hosts: tuple[str, ...]


def queued_jobs(
    waiting: Sequence[WaitingJob], hosts: Mapping[str, SchedulableHost]
) -> tuple[QueuedJob, ...]:
    """Return the jobs in the order in which they are served. `waiting` holds the jobs without a
    running trial, the oldest first. Closed hosts do not count, because nothing is served there.
    """
    labels = {name: host.labels for name, host in hosts.items() if not host.closed_reason}
    served = sorted(waiting, key=lambda job: (-job.priority, job.host_time_s))
    found = ((job.job_id, _open_hosts(job, labels)) for job in served)
    return tuple(QueuedJob(job_id, names) for job_id, names in found if names)


def queue_texts(queue: Sequence[QueuedJob], busy: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for each queued job a text such as `behind job kimi-1a2b3c, place 1 of 2 in the
    queue`. `busy` maps each host to the jobs that run there.

    The text gives the job's place on the host where the fewest jobs are served before it. A job
    with a free host begins at once and has no text.
    """
    totals = Counter(host for job in queue for host in job.hosts)
    served: Counter[str] = Counter()
    texts = {}
    for job in queue:
        next_host = min(job.hosts, key=lambda host: (served[host], host))
        served.update(job.hosts)
        running = sorted({other for host in job.hosts for other in busy.get(host, ())})
        if running and all(busy.get(host) for host in job.hosts):
            texts[job.job_id] = (
                f"behind {_names(running)}, place {served[next_host]} of"
                f" {totals[next_host]} in the queue"
            )
    return texts


def _open_hosts(job: WaitingJob, labels: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    pinned = (host for host in job.pinned if host in labels)
    matching = job.choice.matching(labels) if job.blocks else ()
    return tuple(sorted({*pinned, *matching}))


def _names(job_ids: Sequence[str]) -> str:
    more = len(job_ids) - _MAX_NAMED
    named = f"job{'' if len(job_ids) == 1 else 's'} {', '.join(job_ids[:_MAX_NAMED])}"
    return named + (f" and {more} more" if more > 0 else "")
