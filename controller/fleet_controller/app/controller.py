"""The controller, which follows its agents, stores their events, starts the next trials and fetches
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from fleet_controller.app.submission import JobSubmission
from fleet_controller.core.controller_api import (
    HostCheck,
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    JobSummary,
    TrialDetail,
)
from fleet_controller.core.inventory import Inventory
from fleet_controller.core.scheduler import TrialStart, next_starts
from fleet_controller.core.trial_state import Attempt, ended_by_controller
from fleet_controller.hosts.connections import HostConnections
from fleet_controller.hosts.host_checks import check_connections
from fleet_controller.hosts.host_connection import HostConnection
from fleet_controller.hosts.host_health import HostHealth
from fleet_controller.hosts.host_timeouts import HostTimeouts
from fleet_controller.hosts.targets import FleetTargets, targets_of
from fleet_controller.jobs.indexed_job import SeenTrials, job_change
from fleet_controller.jobs.job_index import wait_until_set
from fleet_controller.jobs.job_views import job_detail
from fleet_controller.jobs.queries import ReadOnlyController
from fleet_controller.jobs.state_writer import StateWriter
from fleet_controller.store.store import Store
from fleet_protos.errors import ErrorKind, FleetError, NotFound, StoreUnusable
from fleet_protos.prometheus_series import RunSeries

log = logging.getLogger(__name__)

_SCHEDULE_INTERVAL_S = 1.0  # no event marks the end of a pause between attempts
FIRST_CONTACT_S = 10.0  # how long a submit waits for an agent that was just started
_STORE_CHECK_INTERVAL_S = 1.0
_ACKNOWLEDGE_LIMIT_S = 2.0
_INTERRUPT_LIMIT_S = 120.0  # long, because servers are stopped first
_DOWNLOAD_LIMIT_S = 20.0  # how long a stop waits for files that are still being fetched


class FleetController:
    """A `Controller` that is connected to agents. Call `load` once and then `run`. Without `run`,
    no trial starts and no event is stored.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        targets: FleetTargets,
        series: RunSeries,
        first_contact_s: float = FIRST_CONTACT_S,
    ) -> None:
        self._writer = StateWriter(store, series)
        self._queries = ReadOnlyController(store, folder / "artifacts")
        self._connections = HostConnections(targets, self._writer, folder / "artifacts")
        self._by_host, self._host_connections = self._connections.by_host, self._connections.all
        self._first_contact_s = first_contact_s
        self._health = HostHealth(
            self._writer, lambda: self._host_connections, targets.probe_first_s
        )
        self._timeouts = HostTimeouts(
            self._writer, lambda: self._host_connections, targets.give_up_after_s
        )
        self._submission = JobSubmission(self._writer, self._connections, first_contact_s)
        self._blocked_reason = ""  # why nothing is started now

    # Work

    async def apply_inventory(self, inventory: Inventory) -> None:
        """Add, remove and change hosts as a changed fleet file says. Everything else continues
        meanwhile.
        """
        await self._connections.apply_targets(targets_of((), inventory))

    async def load(self, only_job: str | None = None) -> None:
        """Read the jobs that are not over. Call this before `run` and before any query.

        With `only_job`, no trial of the other jobs that are read begins. If `only_job` is empty, no
        trial of any job that is read begins. Jobs that are submitted later are not affected.
        """
        await self._writer.load()
        if only_job is not None:
            self._writer.job_index.hold_other_jobs(only_job)
        await self._health.load()

    async def wait_for_agents(self) -> None:
        """Return when all agents are connected, or when the time limit for the first contact is
        over. Call this when the agents were just started.

        The wait for a host of the fleet file also ends once it is known why the host does not
        answer, because its agent was not started here.
        """
        deadline_s = time.monotonic() + self._first_contact_s
        for connection in self._host_connections:
            connection.reconnect_now()
        while (left_s := deadline_s - time.monotonic()) > 0:
            if all(
                connection.connected or (connection.fleet_host and connection.was_tried)
                for connection in self._host_connections
            ):
                return
            await wait_until_set(self._writer.job_index.next_change(), left_s)

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the agents and start trials until `stopping` is set. Then fetch missing files and
        close the connections.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(work)
                    for work in (
                        self._connections.run(),
                        self._schedule_loop(),
                        self._health.probe_quarantined(),
                        self._watch_store(),
                    )
                ]
                await stopping.wait()
                await self._finish_downloads()
                await self._acknowledge_all()
                await self._writer.check_store()
                for task in working:
                    task.cancel()
        finally:
            await self._connections.close()
            self._writer.close()

    async def _watch_store(self) -> None:
        """Check the store until cancelled. Raises StoreLost, which ends the controller, if the
        store is lost.
        """
        while True:
            with contextlib.suppress(StoreUnusable):  # `store_error` says so
                await self._writer.check_store()
            await wait_until_set(self._writer.store_lost, _STORE_CHECK_INTERVAL_S)

    async def _schedule_loop(self) -> None:
        while True:
            changed = self._writer.job_index.next_change()
            try:
                await self._health.apply_ended_attempts()
                await self._drop_removed_hosts()
                await self._timeouts.close_expired()
                for end in self._writer.job_index.newly_hopeless():
                    over = ended_by_controller(
                        Attempt(1), end.kind, end.failure_class, end.message, time.time_ns()
                    )
                    await self._writer.save_attempt(end.trial_id, over)
                waiting = (job.waiting for job in self._writer.job_index.jobs_to_start)
                hosts = self._health.schedulable_hosts()
                for start in next_starts(waiting, hosts, time.time_ns()):
                    await self._start_attempts(start)
                for host in self._writer.job_index.hosts_with_nodes_to_end():
                    self._by_host[host].notify_orders()
                self._health.publish(hosts)
                if not self._writer.store_error:
                    self._blocked_reason = ""
                else:
                    self._report_blocked(self._writer.store_error)
            except FleetError as error:  # nothing is started that the store does not have
                self._report_blocked(error.message)
            await wait_until_set(changed, _SCHEDULE_INTERVAL_S)

    def _report_blocked(self, why: str) -> None:
        if why != self._blocked_reason:
            log.warning("no trials are started: %s", why)
        self._blocked_reason = why
        for job in self._writer.job_index.open_jobs:
            job.trouble = f"no trials are started: {why}"

    async def _drop_removed_hosts(self) -> None:
        """Drop hosts that were removed from the fleet file, once no trial runs on them. Close the
        trials that wait for such a host.
        """
        for host in await self._connections.close_removed():
            for job in self._writer.job_index.open_jobs:
                for trial in [
                    trial
                    for trial in job.trials.values()
                    if host in trial.hosts and trial.may_start and not trial.is_active
                ]:
                    message = f"host {host} was removed from the fleet file"
                    end = ended_by_controller(
                        Attempt(len(trial.attempts) + 1),
                        ErrorKind.CONFIG,
                        "host_removed",
                        message,
                        time.time_ns(),
                    )
                    await self._writer.save_attempt(trial.spec.trial_id, end)

    async def _start_attempts(self, start: TrialStart) -> None:
        """Store the attempt of each node of this start, and then send the orders. An agent that
        gets the same order twice starts only one attempt.
        """
        nodes = ((start.trial_id, start.host), *start.members)
        await self._writer.begin_attempts(
            [trial_id for trial_id, _ in nodes],
            Attempt(start.attempt),
            self._writer.job_index.specs_for_start(start),
        )
        for _, host in nodes:
            self._by_host[host].notify_orders()

    async def _finish_downloads(self) -> None:
        try:
            async with asyncio.timeout(_DOWNLOAD_LIMIT_S):
                for connection in self._host_connections:
                    await connection.downloads.wait_until_done()
        except TimeoutError:
            log.warning(
                "not all files of trials were fetched; the next start of the controller continues"
            )

    async def _acknowledge_all(self) -> None:
        """Acknowledge all stored events, because an agent with unacknowledged events obeys no other
        controller.
        """
        try:
            async with asyncio.timeout(_ACKNOWLEDGE_LIMIT_S):
                await asyncio.gather(
                    *(connection.acknowledge_stored() for connection in self._host_connections)
                )
        except TimeoutError:
            log.info(
                "some hosts do not know yet that their events are stored; they learn it at the next"
                " connection"
            )

    # What fleetctl asks

    async def submit(
        self, yaml: str, file_name: str, only_connected: bool = False, request_key: str = ""
    ) -> str:
        """Plan, check and store a job, and return its id. If a job was stored with this
        `request_key` before, return that job's id instead.

        Raises JobRejected for a job file with errors. Raises HostUnreachable if no agent is
        connected. Raises ConfigError if no host can run the job.
        """
        return await self._submission.submit(yaml, file_name, only_connected, request_key)

    async def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, the newest first."""
        indexed = self._writer.job_index.jobs
        jobs = await self._queries.jobs()
        return tuple(
            replace(job, trouble=indexed[job.job_id].reported_trouble)
            if job.job_id in indexed
            else job
            for job in jobs
        )

    async def job(self, job_id: str) -> JobDetail:
        """Return one job by its id or a unique prefix of it."""
        row = await self._writer.find_job(job_id)
        indexed = self._writer.job_index.jobs.get(row.job_id)
        if indexed is None:
            return await self._queries.job(row.job_id)
        return job_detail(
            indexed.row, indexed.trials.values(), indexed.reported_trouble, indexed.progress
        )

    async def watch(self, job_id: str) -> AsyncIterator[JobChange]:
        """Yield the changes of a job until it is over."""
        row = await self._writer.find_job(job_id)
        seen: SeenTrials = {}
        job = self._writer.job_index.jobs.get(row.job_id)
        if job is None:
            async for change in self._queries.watch(row.job_id):
                yield change
            return
        while True:
            changed = self._writer.job_index.next_change()
            yield job_change(job, seen)
            if job.is_over:
                return
            await changed.wait()

    async def cancel(self, job_id: str) -> int:
        """Start no more trials of the job and end the running trials. Return how many trials were
        ended or will never start.
        """
        row = await self._writer.find_job(job_id)
        job = self._writer.job_index.jobs.get(row.job_id)
        if job is None or job.is_over:
            return 0
        waiting = sum(not trial.is_active and trial.may_start for trial in job.trials.values())
        active = await self._writer.cancel_job(row.job_id)
        for connection in self._host_connections:
            connection.notify_orders()
        return waiting + len(active)

    async def interrupt(self, timeout_s: float = _INTERRUPT_LIMIT_S) -> None:
        """Begin no more trials, and end the running trials so that the next controller repeats
        them. Return when no trial runs any more, or after the timeout.
        """
        index = self._writer.job_index
        index.interrupted = True
        for connection in self._host_connections:
            connection.notify_orders()
        deadline_s = time.monotonic() + timeout_s
        while index.running_by_host() and (left_s := deadline_s - time.monotonic()) > 0:
            await wait_until_set(index.next_change(), left_s)

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Return all hosts of this controller."""
        return tuple(
            self._health.with_decisions(connection.status())
            for connection in self._host_connections
        )

    async def drain(self, host: str, reason: str) -> None:
        """Start no new trials on a host, and measure the running trials to their end. Raises
        NotFound if no host has this name.
        """
        self._connections_to([host])
        await self._health.drain(host, reason)

    async def undrain(self, host: str) -> None:
        """Allow trials on a host again, even if it is quarantined. Raises NotFound."""
        self._connections_to([host])
        await self._health.undrain(host)

    async def check_hosts(self, hosts: Sequence[str]) -> AsyncIterator[HostCheck]:
        """Check the named hosts, or all if none is named, and yield each result when it is ready.
        Raises NotFound.
        """
        async for check in check_connections(self._connections_to(hosts), self._health.record_of):
            yield check

    def _connections_to(self, hosts: Sequence[str]) -> list[HostConnection]:
        names = [
            connection.host or connection.agent.address for connection in self._host_connections
        ]
        known_hosts = ", ".join(sorted(names))
        for host in hosts:
            if host not in names:
                raise NotFound(
                    f"there is no host {host}",
                    f"the hosts are: {known_hosts}" if names else "no host is known",
                )
        return [
            connection
            for connection, name in zip(self._host_connections, names, strict=True)
            if not hosts or name in hosts
        ]

    async def results(self, job_id: str) -> JobResults:
        """Return every stored run of a job."""
        return await self._queries.results(job_id)

    def result_parts(self, job_id: str) -> AsyncIterator[JobResults]:
        """Yield the results of a job in parts of bounded size."""
        return self._queries.result_parts(job_id)

    async def trial(self, trial_id: str, attempt: int, with_log: bool) -> TrialDetail:
        """Return one attempt of a trial. Attempt 0 means the newest."""
        return await self._queries.trial(trial_id, attempt, with_log)
