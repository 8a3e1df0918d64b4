"""The controller's connection to one host. Each event is stored before it is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from fleet_controller.core.compatibility import clock_warning
from fleet_controller.core.controller_api import HostStatus
from fleet_controller.core.gang import meeting_host
from fleet_controller.core.host_view import (
    GPUS_UNKNOWN,
    merge_gpus,
    merge_labels,
)
from fleet_controller.core.inventory import FleetHost
from fleet_controller.core.trial_state import Trial, ended_by_controller
from fleet_controller.hosts.agent_checks import AgentChecks
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.hosts.artifact_downloads import ArtifactDownloads
from fleet_controller.hosts.order_sender import OrderSender
from fleet_controller.hosts.reconcile import AttemptReconciler
from fleet_controller.hosts.targets import LOCAL_ACCESS, AgentTarget, HostAccess, direct_address
from fleet_controller.jobs.job_index import wait_until_set
from fleet_controller.jobs.state_writer import StateWriter
from fleet_controller.planning.admission_preview import AdvertisedPolicy
from fleet_protos import events as ev
from fleet_protos.errors import (
    ConfigError,
    Conflict,
    ErrorKind,
    FleetError,
    StoreUnusable,
)
from fleet_protos.trial_types import EngineKind
from fleet_protos.v1.agent_values import AgentInfo
from fleet_transport.tls_identity import agent_name

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_ACKNOWLEDGE_PAUSE_S = 0.2
_POLL_INTERVAL_S = 3.0


class HostConnection:
    """The connection to one agent. The object exists also while the agent cannot be reached."""

    def __init__(
        self,
        target: AgentTarget,
        writer: StateWriter,
        artifacts: Path,
        by_host: dict[str, HostConnection],
        access: HostAccess = LOCAL_ACCESS,
    ) -> None:
        self.agent = AgentClient(target.address)
        self.fleet_host = target.fleet_host  # its entry in the fleet file
        self._access = access
        self._by_host = by_host  # the connection of each host
        if target.fleet_host is not None:
            by_host.setdefault(target.fleet_host.name, self)
        self.trouble = ""
        self.connected = False
        self._checks = AgentChecks(self.agent)
        self._disconnected_at_s = time.monotonic()  # see `away_s`
        self.is_removed = False  # from the fleet file
        self.downloads = ArtifactDownloads(self.agent, writer, artifacts)
        self._reconciler = AttemptReconciler(self.agent, writer, self.downloads)
        self.agent.controller_epoch = writer.store.controller_epoch
        self._info = AgentInfo()
        self._writer = writer
        self._orders = OrderSender(self, writer, by_host)
        self._stored_sequence = 0
        self._stored_changed = asyncio.Event()
        self._reconnect = asyncio.Event()
        # Kept while connected, so that a trouble that returns at once is logged only once.
        self._last_logged_trouble = ""

    @property
    def host(self) -> str:
        """Return the host's name in the fleet file, or else the name that its agent reports. The
        name is empty before the first contact.
        """
        return self.fleet_host.name if self.fleet_host else self._info.host

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels by which jobs select the host."""
        return merge_labels(self.fleet_host, self._info.labels)

    @property
    def meeting_host(self) -> str:
        """Return the address at which other hosts reach this host."""
        return meeting_host(
            direct_address(self.fleet_host) if self.fleet_host else self.agent.address,
            self.labels.get("address", ""),
        )

    @property
    def was_tried(self) -> bool:
        """Return whether the host is connected or the reason for no connection is known."""
        return self.connected or bool(self.trouble)

    @property
    def no_trials_reason(self) -> str:
        """Return why a host that answers takes no trials; empty if it takes trials."""
        if self.removed_reason:
            return self.removed_reason
        return "it only sends load" if self.load_only else self._info.takes_no_trials

    @property
    def removed_reason(self) -> str:
        """Return why no new trial begins on the host; empty while the host is in the fleet."""
        return "it was removed from the fleet file" if self.is_removed else ""

    @property
    def load_only(self) -> bool:
        """Return whether the host only sends load for other hosts and never gets a trial."""
        return self._info.load_only or (self.fleet_host is not None and self.fleet_host.load_only)

    @property
    def advertised_policy(self) -> AdvertisedPolicy:
        """Return which Python interpreters and images the agent reports as allowed."""
        info = self._info
        return AdvertisedPolicy(
            info.strict,
            info.allowed_pythons,
            info.allowed_images,
            info.server_python,
            info.server_image,
        )

    def usable_gpus(self, kind: EngineKind) -> int:
        """Return how many of the host's GPUs may be used by servers of this kind."""
        reported = {
            EngineKind.SGLANG: self._info.gpus,
            EngineKind.SIMULATED: self._info.simulated_gpus,
        }.get(kind)
        if reported is None:
            return 0
        return merge_gpus(
            self.fleet_host, reported if self._info.agent_id else None, kind is EngineKind.SIMULATED
        )

    def status(self) -> HostStatus:
        """Return the host's status for the list of hosts."""
        info, fleet_host = self._info, self.fleet_host or FleetHost()
        return HostStatus(
            host=self.host or self.agent.address,
            address=direct_address(fleet_host) if self.fleet_host else self.agent.address,
            state="connected"
            if self.connected
            else "unreachable"
            if self._checks.is_compatible
            else "incompatible",
            gpus=self._listed_gpus(EngineKind.SGLANG),
            simulated_gpus=self._listed_gpus(EngineKind.SIMULATED),
            version=info.version,
            labels=dict(self.labels),
            message=self._status_message if self.connected else self.trouble or "no answer yet",
            clock_ahead_s=self.agent.clock.ahead_ns / 1e9,
            certificate_expires_unix_s=info.certificate_expires_unix_s,
            load_only=self.load_only,
            cost_per_hour=fleet_host.cost_per_hour,
        )

    @property
    def _status_message(self) -> str:
        """Return what a user should know about the host while it is connected."""
        waits = (
            f"takes no new trials: {self._info.takes_no_trials}"
            if self._info.takes_no_trials
            else ""
        )
        return "; ".join(
            filter(
                None,
                (waits, self.downloads.trouble, clock_warning(self.agent.clock.ahead_ns / 1e9)),
            )
        )

    def away_s(self, now_s: float) -> float:
        """Return for how many seconds the host has been away, or 0 while it is connected. Time
        before the start of this controller does not count.

        `now_s` is a monotonic time.
        """
        return 0.0 if self.connected else now_s - self._disconnected_at_s

    def _listed_gpus(self, kind: EngineKind) -> int:
        room = self.usable_gpus(kind)
        return 0 if room == GPUS_UNKNOWN else room

    async def run(self) -> None:
        """Follow the agent, send orders to it and download its files, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._stay_connected(),
                self._orders.run(),
                self._acknowledge_loop(),
                self._poll_agent(),
                self.downloads.run(),
            ):
                tasks.create_task(work)

    # Following

    async def _stay_connected(self) -> None:
        """Connect and follow the agent's events. Reconnect with growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            stored = self._stored_sequence
            try:
                await self._connect()
                await self._follow_events()
            except FleetError as error:
                if isinstance(error, StoreUnusable):
                    # The host is not to blame, so it does not count as being away.
                    self._disconnected_at_s = time.monotonic()
                cause = self.cause_of(error)
                message = (
                    f"{cause.message}: {cause.hint}"
                    if isinstance(cause, ConfigError) and cause.hint
                    else cause.message
                )
                if message != self.trouble and not (
                    self.connected and self._last_logged_trouble == message
                ):
                    log.warning("%s: %s", self.host or self.agent.address, message)
                self.trouble = self._last_logged_trouble = message
            self._last_logged_trouble = (
                "" if self._stored_sequence > stored else self._last_logged_trouble
            )
            if self.connected:
                self.connected, self._disconnected_at_s = False, time.monotonic()
            self._writer.job_index.notify()
            # Only a connection that brought events resets the pause: one that breaks at once must
            # not be retried at full speed.
            if self._stored_sequence > stored:
                pause_s = _FIRST_PAUSE_S
            await wait_until_set(self._reconnect, pause_s)
            pause_s = (
                _FIRST_PAUSE_S if self._reconnect.is_set() else min(pause_s * 2, _LAST_PAUSE_S)
            )
            self._reconnect.clear()

    def cause_of(self, error: FleetError) -> FleetError:
        """Return the error to report for a failed call. A missing certificate of the host is
        reported first, because other errors follow from it.
        """
        try:
            if self.fleet_host is not None:
                self._access.tls_files(self.fleet_host.name)
        except ConfigError as cause:
            return cause
        return error

    async def _poll_agent(self) -> None:
        """Ask the agent every few seconds for disk space, clock and kept attempts."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            if not self.connected:
                continue
            try:
                info = await self.agent.describe()
                if info.agent_id == self._info.agent_id:
                    before, self._info = self._info.takes_no_trials, info
                    if info.takes_no_trials != before:
                        log.info("%s: %s", self.host, info.takes_no_trials or "takes trials again")
                        self._writer.job_index.notify()
                    await self._reconciler.cancel_ended_attempts(info)
                    await self._reconciler.release_files(info, self._stored_sequence)
            except FleetError as error:  # `_stay_connected` handles a lost connection
                log.debug("%s: %s", self.host, error.message)

    async def update_fleet_host(self, fleet_host: FleetHost) -> None:
        """Apply a changed entry of the fleet file. Reconnect if the address or the way to the host
        has changed.
        """
        before, self.fleet_host, self.is_removed = self.fleet_host, fleet_host, False
        route = fleet_host.address, fleet_host.port, fleet_host.through_ssh, fleet_host.ssh
        if before is not None and route != (
            before.address,
            before.port,
            before.through_ssh,
            before.ssh,
        ):
            await self.agent.close()
            self.reconnect_now()

    def reconnect_now(self) -> None:
        """End the pause before the next connection, because the agent was just started."""
        self._reconnect.set()

    async def _connect(self) -> None:
        if self.fleet_host is not None:
            host = self.fleet_host
            display_name = (
                f"agent at {direct_address(host)} through ssh" if host.through_ssh else ""
            )
            await self.agent.retarget(
                await self._access.resolve_address(host),
                self._access.tls_files(host.name),
                agent_name(host.name),
                display_name,
            )
        info = await self.agent.describe()
        self._checks.check(info, self.fleet_host)
        other = self._by_host.setdefault(info.host, self)
        if other is not self:
            message = (
                f"the agents at {other.agent.address} and {self.agent.address} "
                f"have the same host name, {info.host}"
            )
            raise Conflict(message, "start one of the two agents with a different --host-name")
        self._info = info
        await self._close_lost_attempts()
        await self._reconciler.cancel_ended_attempts(info)
        self.downloads.reset(await self._writer.missing_artifacts(info.agent_id))
        self._stored_sequence = await self._writer.last_sequence(info.agent_id)
        await self.agent.present_epoch(info.agent_id)
        self.connected, self.trouble = True, ""
        self._stored_changed.set()
        self._orders.notify_connected()
        self._writer.job_index.notify()

    async def _close_lost_attempts(self) -> None:
        """End attempts of a lost journal, because the new journal never reports their end."""
        for _, trial in self._writer.job_index.active_on(self.host):
            attempt = trial.newest
            if attempt is not None and attempt.agent_id and attempt.agent_id != self._info.agent_id:
                lost_id, new_id = attempt.agent_id[:8], self._info.agent_id[:8]
                message = (
                    f"the agent of {self.host} lost its journal: its id was {lost_id}, "
                    f"and now it is {new_id}"
                )
                end = ended_by_controller(
                    attempt, ErrorKind.AGENT_RESTARTED, "agent_state_lost", message, time.time_ns()
                )
                await self._writer.save_attempt(trial.spec.trial_id, end)

    async def _follow_events(self) -> None:
        agent_id = self._info.agent_id
        async for event in self.agent.events(agent_id, self._stored_sequence):
            if event.body is None:
                log.info("%s: event %d is of an unknown kind; ignored", self.host, event.sequence)
            trial = await self._writer.record_event(agent_id, self.host, event, self.agent.clock)
            if trial is not None:
                self._handle_event(event, trial)
            elif isinstance(event.body, ev.EvidenceCollected | ev.RunFinished):
                # The job is no longer in memory, only in the store.
                self.downloads.add(await self._writer.missing_artifacts(agent_id))
            self._stored_sequence = event.sequence
            self._stored_changed.set()

    def _handle_event(self, event: ev.Event, trial: Trial) -> None:
        if isinstance(event.body, ev.TrialAccepted):
            self._writer.series.expect_runs(trial.spec, self.host)
        if isinstance(event.body, ev.RunFinished):
            self._writer.series.record_run(trial.spec, event.body.run, self.host)
            if event.body.run.artifact.name:
                self.downloads.add([event.body.run.artifact])
        if isinstance(event.body, ev.EvidenceCollected):
            self.downloads.add(event.body.artifacts)
        if isinstance(event.body, ev.TrialOver):
            self._orders.notify_trial_over()

    async def _acknowledge_loop(self) -> None:
        """Acknowledge stored events until cancelled. One call covers all events of a short
        interval.
        """
        while True:
            await self._stored_changed.wait()
            self._stored_changed.clear()
            await self.acknowledge_stored()
            await asyncio.sleep(_ACKNOWLEDGE_PAUSE_S)

    async def acknowledge_stored(self) -> None:
        """Acknowledge all events that are stored, if the store still holds them."""
        if not self.connected or not self._stored_sequence:
            return
        try:
            await self._writer.check_store()
            await self.agent.acknowledge(self._stored_sequence, self._info.agent_id)
        except FleetError as error:  # the next event or connection acknowledges them
            log.info(
                "%s: events up to %d are stored and not acknowledged: %s",
                self.host,
                self._stored_sequence,
                error.message,
            )

    def notify_orders(self) -> None:
        """Start a search for attempts to start or cancel on this host. Returns at once."""
        self._orders.notify()
