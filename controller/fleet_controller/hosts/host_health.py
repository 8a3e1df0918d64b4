"""Decides which hosts get trials. A user may drain a host. A host with failures is quarantined and
then checked again.

Each decision is stored before it takes effect, so that it survives a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fleet_controller.core.controller_api import HostStatus, error_messages
from fleet_controller.core.gang import lead_and_rank
from fleet_controller.core.quarantine import (
    PROBE_FIRST_S,
    HostRecord,
    after_attempt,
    drain,
    failure_points,
    host_state,
    probe_pause_s,
    put_on_probation,
    undrain,
)
from fleet_controller.core.queue_position import queue_texts, queued_jobs
from fleet_controller.core.schedule_inputs import SchedulableHost, waiting_reason
from fleet_controller.core.trial_state import Trial
from fleet_controller.hosts.host_checks import check_connection
from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.jobs.state_writer import StateWriter
from fleet_protos.trial_types import EngineKind, Outcome

log = logging.getLogger(__name__)

_TICK_S = 1.0
HELD = "until it is resumed, because this controller was started for another job"


class HostHealth:
    """The records of all hosts, and the states of hosts for the scheduler, the list of hosts and
    the metrics.
    """

    def __init__(
        self,
        writer: StateWriter,
        connections: Callable[[], Sequence[HostConnection]],
        probe_first_s: float = PROBE_FIRST_S,
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._probe_first_s = probe_first_s
        self._records: dict[str, HostRecord] = {}
        # host → why it gets no trials, when the reasons of waiting jobs were last computed
        self._published_closed: dict[str, str] = {}
        # host → checks since its quarantine began, monotonic time of the next
        self._probes: dict[str, tuple[int, float]] = {}

    async def load(self) -> None:
        """Read the host records that an earlier controller stored."""
        self._records = {record.name: record for record in await self._writer.host_records()}

    def record_of(self, host: str) -> HostRecord:
        """Return the record of a host, or an empty record if nothing was ever decided about the
        host.
        """
        return self._records.get(host) or HostRecord(host)

    async def drain(self, host: str, why: str) -> None:
        """Start no new trials on the host."""
        await self._save_record(drain(self.record_of(host), why))
        log.info("%s: drained%s", host, f": {why}" if why else "")

    async def undrain(self, host: str) -> None:
        """Allow trials on the host again and forget its failures."""
        await self._save_record(undrain(self.record_of(host)))
        log.info("%s: takes trials again", host)

    # What the scheduler sees

    def schedulable_hosts(self) -> list[SchedulableHost]:
        """Return every host as the scheduler sees it now."""
        running, borrowed = (
            self._writer.job_index.running_by_host(),
            self._writer.job_index.load_hosts_in_use(),
        )
        return [
            self._schedulable_host(
                connection, running.get(connection.host, ()), connection.host in borrowed
            )
            for connection in self._connections()
            if connection.host
        ]

    def _schedulable_host(
        self, connection: HostConnection, running: Sequence[Trial], is_borrowed: bool
    ) -> SchedulableHost:
        kinds = (EngineKind.SGLANG, EngineKind.SIMULATED)
        gpus = {kind: connection.usable_gpus(kind) for kind in kinds}
        used = {
            kind: sum(trial.spec.engine.gpus for trial in running if trial.spec.engine.kind is kind)
            for kind in kinds
        }
        return SchedulableHost(
            connection.host,
            connection.labels,
            self._closed_reason(connection),
            len(running) + is_borrowed,
            not is_borrowed and all(trial.spec.shared for trial in running),
            gpus,
            {kind: max(0, gpus[kind] - used[kind]) for kind in kinds},
            can_lend_load=not running and not is_borrowed,
            no_load_reason=self.record_of(connection.host).closed_reason
            or ("" if connection.connected else "away")
            or connection.removed_reason,
        )

    def _closed_reason(self, connection: HostConnection) -> str:
        return (
            self.record_of(connection.host).closed_reason
            or ("" if connection.connected else "away")
            or connection.no_trials_reason
        )

    def publish(self, hosts: Sequence[SchedulableHost]) -> None:
        """Update the reasons why jobs wait, and the Prometheus counts of hosts by state."""
        known = {host.name: host for host in hosts}
        # If the store cannot be written, jobs report that instead.
        if not self._writer.store_error and all(
            connection.was_tried for connection in self._connections()
        ):
            self._publish_waiting_reasons(known)
        counts: dict[str, int] = {}
        for connection in self._connections():
            word = self._state(connection, known.get(connection.host))
            counts[word] = counts.get(word, 0) + 1
        self._writer.hosts_series.set_counts(counts)

    def _publish_waiting_reasons(self, hosts: Mapping[str, SchedulableHost]) -> None:
        index = self._writer.job_index
        closed = {name: host.closed_reason for name, host in hosts.items()}
        behind = self._queue_texts(hosts)
        for job in index.open_jobs:
            text = HELD if job.row.job_id in index.held else behind.get(job.row.job_id, "")
            if (
                closed == self._published_closed
                and job.trouble_inputs
                and job.trouble_inputs[0] is job.waiting
                and job.trouble_inputs[1:] == (text, job.trouble)
            ):
                continue
            waits_for = waiting_reason(job.waiting, hosts)
            waits = (f"for {waits_for}" if waits_for else "", text)
            trouble = f"waits {', '.join(filter(None, waits))}" if any(waits) else ""
            job.trouble_inputs = job.waiting, text, trouble
            if trouble != job.trouble:
                job.trouble = trouble
                index.notify()
        self._published_closed = closed

    def _queue_texts(self, hosts: Mapping[str, SchedulableHost]) -> dict[str, str]:
        index = self._writer.job_index
        idle = [job.waiting for job in index.jobs_to_start if not job.active]
        if not idle:
            return {}
        busy = {
            host: tuple({job.row.job_id for job in map(index.job_of, ids) if job is not None})
            for host, trials in index.running_by_host().items()
            if (ids := [trial.spec.trial_id for trial in trials])
        }
        return queue_texts(queued_jobs(idle, hosts), busy)

    def _state(self, connection: HostConnection, host: SchedulableHost | None) -> str:
        record = self.record_of(connection.host)
        holds = {
            "away": not connection.connected,
            "drained": record.drained,
            "aside": bool(record.aside),
        }
        return host_state({**holds, "busy": host is not None and host.running > 0})

    def with_decisions(self, status: HostStatus) -> HostStatus:
        """Return the status of a host together with drain, quarantine and running trials."""
        record, running = (
            self.record_of(status.host),
            self._writer.job_index.running_by_host().get(status.host, []),
        )
        active = " ".join(
            f"{trial.spec.trial_id}/{trial.newest.number}"
            for trial in running
            if trial.newest is not None
        )
        return replace(
            status,
            drained=record.drained,
            drain_reason=record.drain_reason,
            aside=record.aside,
            aside_since_unix_ns=record.aside_since_unix_ns,
            active_trial=active or status.active_trial,
        )

    # Failures

    async def apply_ended_attempts(self) -> None:
        """Update the records of hosts by the attempts that ended there since the last call."""
        while self._writer.ended_attempts:
            trial_id, attempt = self._writer.ended_attempts[0]
            job = self._writer.job_index.job_of(trial_id)
            node = job.nodes[trial_id] if job else None
            if job is not None and node is not None:
                record = self.record_of(node.spec.host)
                weight = failure_points(
                    attempt,
                    attempt.outcome is Outcome.FAILED
                    and job.works_elsewhere(job.trials[lead_and_rank(trial_id)[0]]),
                )
                after = after_attempt(record, trial_id, attempt, weight, time.time_ns())
                if after != record:
                    await self._save_record(after)
                if after.aside and not record.aside:
                    log.warning("%s: quarantined after %s", after.name, after.aside)
            self._writer.ended_attempts.popleft()

    async def _save_record(self, record: HostRecord) -> None:
        await self._writer.save_host(record)
        self._records[record.name] = record
        if not record.aside:
            self._probes.pop(record.name, None)
        self._writer.job_index.notify()

    # Probes

    async def probe_quarantined(self) -> None:
        """Check quarantined hosts until cancelled, with growing pauses. A host whose check finds no
        error gets trials again.
        """
        while True:
            for connection in self._connections():
                if (
                    self.record_of(connection.host).aside
                    and not self.record_of(connection.host).drained
                    and connection.connected
                ):
                    await self._probe(connection)
            await asyncio.sleep(min(_TICK_S, self._probe_first_s))

    async def _probe(self, connection: HostConnection) -> None:
        record, now_s = self.record_of(connection.host), time.monotonic()
        probes, due_s = self._probes.setdefault(
            connection.host, (0, now_s + probe_pause_s(record, 0, self._probe_first_s))
        )
        if now_s < due_s:
            return
        found = await check_connection(connection)
        record = self.record_of(connection.host)  # a user may have changed it meanwhile
        if not record.aside:
            return
        if found.reached and not error_messages(found):
            log.info("%s: the check found nothing; the next trial on it decides", connection.host)
            await self._save_record(put_on_probation(record))
            return
        pause_s = probe_pause_s(record, probes + 1, self._probe_first_s)
        log.info(
            "%s: still quarantined (%s); the next check is in %.0f s",
            connection.host,
            error_messages(found) or "not reached",
            pause_s,
        )
        self._probes[connection.host] = probes + 1, time.monotonic() + pause_s
