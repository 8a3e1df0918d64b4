"""Sends one host its orders: to start and cancel attempts, and to release load hosts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from fleet_controller.core.gang import lead_and_rank, spec_for_agent
from fleet_controller.core.trial_state import Attempt, Trial, ended_by_controller
from fleet_controller.hosts.load_cluster import AttemptKey, LoadClusters, LoadHostConnection
from fleet_controller.jobs.indexed_job import IndexedJob
from fleet_controller.jobs.state_writer import StateWriter
from fleet_protos.errors import (
    Conflict,
    ErrorKind,
    FleetError,
    HostUnreachable,
    LoadError,
    Superseded,
)
from fleet_protos.trial_types import EngineKind, Outcome, Phase, TrialSpec

log = logging.getLogger(__name__)

_RETRY_S = 2.0  # pause before an order that the host could not take is sent again


class OrderTarget(LoadHostConnection, Protocol):
    """The connection to the host that gets the orders, as this module uses it."""

    @property
    def host(self) -> str:
        """Return the name of the host."""
        ...

    def usable_gpus(self, kind: EngineKind) -> int:
        """Return how many of the host's GPUs may be used by servers of this kind."""
        ...


class OrderSender:
    """Sends the orders of one host, one at a time. So a cancel never overtakes the start of the
    same attempt.
    """

    def __init__(
        self,
        target: OrderTarget,
        writer: StateWriter,
        by_host: Mapping[str, LoadHostConnection],
    ) -> None:
        self._target = target
        self._writer = writer
        self._by_host = by_host
        self._load_clusters = LoadClusters(by_host)  # for trials whose lead is on this host
        self._pending = asyncio.Event()
        self._cancel_sent: set[AttemptKey] = set()  # over this connection: asking once is enough

    def notify(self) -> None:
        """Wake `run`, which looks for orders to send. Returns at once, so that a host that hangs
        delays no other host.
        """
        self._pending.set()

    def notify_connected(self) -> None:
        """Send all orders again over a new connection."""
        self._cancel_sent.clear()
        self._pending.set()

    def notify_trial_over(self) -> None:
        """Release the load hosts of a trial that has ended, if there are any."""
        if self._load_clusters.active_keys():
            self._pending.set()

    async def run(self) -> None:
        """Send orders until cancelled."""
        while True:
            await self._pending.wait()
            self._pending.clear()
            if not self._target.connected:
                continue  # the next connection calls `notify_connected`
            await self._release_load_hosts()
            for job, trial in self._writer.job_index.active_on(self._target.host):
                try:
                    await self._send_order(job, trial)
                except (HostUnreachable, Conflict) as error:
                    log.info("%s: %s", trial.spec.trial_id, error.message)
                    asyncio.get_running_loop().call_later(_RETRY_S, self._pending.set)

    async def _send_order(self, job: IndexedJob, trial: Trial) -> None:
        attempt = trial.newest
        if attempt is None:
            return
        index = self._writer.job_index
        reason = (
            "the job was cancelled"
            if job.row.cancelled
            else "the job was interrupted"
            if index.interrupted
            else index.end_reason(trial.spec.trial_id)
        )
        if reason:
            await self._cancel_attempt(trial, attempt, reason)
        elif attempt.phase is Phase.QUEUED:
            lead = job.nodes[lead_and_rank(trial.spec.trial_id)[0]].spec.host
            spec = spec_for_agent(trial.spec, attempt.number, self._by_host[lead].meeting_host)
            await self._start_attempt(spec, attempt)

    async def _release_load_hosts(self) -> None:
        """Release the load hosts of attempts that are over."""
        active = {
            (trial.spec.trial_id, trial.newest.number)
            for _, trial in self._writer.job_index.active_on(self._target.host)
            if trial.newest
        }
        for key in self._load_clusters.active_keys():
            if key not in active:
                await self._load_clusters.tear_down(key)

    async def _start_attempt(self, spec: TrialSpec, attempt: Attempt) -> None:
        """Order the agent to start an attempt that no event has confirmed yet. A repeated order is
        harmless.
        """
        usable = self._target.usable_gpus(spec.engine.kind)
        if spec.engine.gpus > usable:
            host = self._target.host
            message = f"it needs {spec.engine.gpus} GPUs, but host {host} has only {usable} now"
            await self._close(spec.trial_id, attempt, ErrorKind.CONFIG, "too_few_gpus", message)
            return
        try:
            if spec.load.hosts:
                await self._load_clusters.set_up(spec)
            await self._target.agent.start(spec)
        except LoadError as error:
            await self._close(
                spec.trial_id, attempt, ErrorKind.HOST_UNREACHABLE, "load_host_away", error.message
            )
        except Superseded as error:
            await self._close(
                spec.trial_id, attempt, ErrorKind.CONFLICT, "superseded", error.message
            )
        except (HostUnreachable, Conflict):
            raise
        except FleetError as error:
            kind = ErrorKind.BUG if error.exit_code == error.exit_code.BUG else ErrorKind.CONFIG
            await self._close(spec.trial_id, attempt, kind, "refused_by_agent", error.message)

    async def _close(
        self, trial_id: str, attempt: Attempt, kind: ErrorKind, failure_class: str, message: str
    ) -> None:
        end = ended_by_controller(attempt, kind, failure_class, message, time.time_ns())
        await self._writer.save_attempt(trial_id, end)

    async def _cancel_attempt(self, trial: Trial, attempt: Attempt, reason: str) -> None:
        """Ask the agent to end an attempt. If the agent does not know the attempt and no event of
        it has arrived, the attempt never began and is closed here.
        """
        key = trial.spec.trial_id, attempt.number
        if key in self._cancel_sent:
            return
        if await self._target.agent.cancel(*key, reason):
            self._cancel_sent.add(key)
            return
        if attempt.phase is not Phase.QUEUED:
            return
        current = next(
            (
                active
                for _, active in self._writer.job_index.active_on(self._target.host)
                if active.spec.trial_id == trial.spec.trial_id
            ),
            None,
        )
        if current is not None and current.newest == attempt:
            end = ended_by_controller(
                attempt, ErrorKind.NONE, "", "cancelled before it began", time.time_ns()
            )
            await self._writer.save_attempt(
                trial.spec.trial_id, replace(end, outcome=Outcome.CANCELLED)
            )
