"""Owns the controller's line to one host: connects, hands trials over, stores each event before it
is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fleet_controller.core.compatibility import agent_incompatibility, clock_warning
from fleet_controller.core.controller_api import HostStatus
from fleet_controller.core.gang import lead_and_rank, meeting_host, spec_for_agent
from fleet_controller.core.host_view import (
    GPUS_UNKNOWN,
    label_differences,
    merge_gpus,
    merge_labels,
)
from fleet_controller.core.inventory import FleetHost
from fleet_controller.core.trial_state import Attempt, Trial, ended_by_controller
from fleet_controller.hosts.agent_client import AgentClient, AgentInfo
from fleet_controller.hosts.artifact_downloads import ArtifactDownloads
from fleet_controller.hosts.load_cluster import LoadClusters
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
    HostUnreachable,
    LoadError,
    StoreUnusable,
    Superseded,
)
from fleet_protos.trial_types import EngineKind, Outcome, Phase, TrialSpec
from fleet_transport.tls_identity import agent_name

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_ACKNOWLEDGE_PAUSE_S = 0.2
_POLL_INTERVAL_S = 3.0
_ORDER_RETRY_S = 2.0  # until an order that the host could not take is given again


class HostConnection:
    """One agent as the controller follows it: connected or not, and what it was told."""

    def __init__(
        self,
        target: AgentTarget,
        writer: StateWriter,
        artifacts: Path,
        by_host: dict[str, HostConnection],
        access: HostAccess = LOCAL_ACCESS,
    ) -> None:
        self.agent = AgentClient(target.address)
        self.fleet_host = target.fleet_host  # what the fleet file says of it
        self._access = access
        self._by_host = by_host  # which line speaks for which host
        if target.fleet_host is not None:
            by_host.setdefault(target.fleet_host.name, self)
        self.trouble = ""
        self.connected = False
        self.is_compatible = True  # its agent speaks a contract near enough to ours
        self._disconnected_at_s = time.monotonic()  # when it was last there; see `away_s`
        self.is_removed = False  # it was taken out of the fleet file
        self.downloads = ArtifactDownloads(self.agent, writer, artifacts)
        self._reconciler = AttemptReconciler(self.agent, writer, self.downloads)
        self.agent.controller_epoch = writer.store.controller_epoch
        self._info = AgentInfo()
        self._writer = writer
        self._orders_pending = asyncio.Event()
        self._load_clusters = LoadClusters(by_host)  # for trials that are led from here
        self._stored_sequence = 0
        self._stored_changed = asyncio.Event()
        self._reconnect = asyncio.Event()
        self._cancel_sent: set[tuple[str, int]] = (
            set()
        )  # over this connection: asking once is enough
        self._logged_differences: tuple[str, ...] = ()
        self._clock_logged = False
        self._last_logged_trouble = (
            ""  # kept while connected, so that what comes again at once is told once
        )

    @property
    def host(self) -> str:
        """Its name in the fleet file, else as the agent tells it; empty before the first contact."""
        return self.fleet_host.name if self.fleet_host else self._info.host

    @property
    def labels(self) -> Mapping[str, str]:
        """What jobs select it by."""
        return merge_labels(self.fleet_host, self._info.labels)

    @property
    def meeting_host(self) -> str:
        """Where the other hosts of a server meet this one."""
        return meeting_host(
            direct_address(self.fleet_host) if self.fleet_host else self.agent.address,
            self.labels.get("address", ""),
        )

    @property
    def was_tried(self) -> bool:
        """It is connected, or what stands in the way is known."""
        return self.connected or bool(self.trouble)

    @property
    def no_trials_reason(self) -> str:
        """Why it takes none though it answers; empty when it does."""
        if self.removed_reason:
            return self.removed_reason
        return "it serves load only" if self.load_only else self._info.takes_no_trials

    @property
    def removed_reason(self) -> str:
        """Why nothing new begins there; empty while it is in the fleet."""
        return "it was taken out of the fleet file" if self.is_removed else ""

    @property
    def load_only(self) -> bool:
        """It drives load for other hosts and never gets a trial."""
        return self._info.load_only or (self.fleet_host is not None and self.fleet_host.load_only)

    @property
    def advertised_policy(self) -> AdvertisedPolicy:
        """What its agent says that it allows jobs."""
        info = self._info
        return AdvertisedPolicy(
            info.strict,
            info.allowed_pythons,
            info.allowed_images,
            info.server_python,
            info.server_image,
        )

    def usable_gpus(self, kind: EngineKind) -> int:
        """GPUs that servers of this kind may use here."""
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
        """As it is listed."""
        info, fleet_host = self._info, self.fleet_host or FleetHost()
        return HostStatus(
            host=self.host or self.agent.address,
            address=direct_address(fleet_host) if self.fleet_host else self.agent.address,
            state="connected"
            if self.connected
            else "unreachable"
            if self.is_compatible
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
        """What is to be known of a host that is connected."""
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
        """Monotonic seconds for which it has been away, or since this controller began to look for
        it; 0 while it is there.
        """
        return 0.0 if self.connected else now_s - self._disconnected_at_s

    def _listed_gpus(self, kind: EngineKind) -> int:
        room = self.usable_gpus(kind)
        return 0 if room == GPUS_UNKNOWN else room

    async def run(self) -> None:
        """Follow the agent, give it its orders and fetch its files, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._stay_connected(),
                self._send_orders(),
                self._acknowledge_loop(),
                self._poll_agent(),
                self.downloads.run(),
            ):
                tasks.create_task(work)

    # Following

    async def _stay_connected(self) -> None:
        """Connect and follow; a broken line is connected again with growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            stored = self._stored_sequence
            try:
                await self._connect()
                await self._follow_events()
            except FleetError as error:
                if isinstance(
                    error, StoreUnusable
                ):  # that is no fault of the host, and not counted as its being away
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
            if (
                self._stored_sequence > stored
                # a line that brought something; one that breaks again at once is not tried ever faster
            ):
                pause_s = _FIRST_PAUSE_S
            await wait_until_set(self._reconnect, pause_s)
            pause_s = (
                _FIRST_PAUSE_S if self._reconnect.is_set() else min(pause_s * 2, _LAST_PAUSE_S)
            )
            self._reconnect.clear()

    def cause_of(self, error: FleetError) -> FleetError:
        """What is to be told when a call failed: that there is no certificate to know the host by,
        before all that follows from it.
        """
        try:
            if self.fleet_host is not None:
                self._access.tls_files(self.fleet_host.name)
        except ConfigError as cause:
            return cause
        return error

    async def _poll_agent(self) -> None:
        """Every few seconds while it is connected: its room, its clock, and what it keeps for us."""
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
            except FleetError as error:  # the line is looked after where events are followed
                log.debug("%s: %s", self.host, error.message)

    async def update_fleet_host(self, fleet_host: FleetHost) -> None:
        """The fleet file says otherwise of this host now; it is connected anew when that is about
        the way there.
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
        """The agent was just started: do not wait for the end of the pause."""
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
        self._check_compatibility(info)
        self._check_against_fleet_file(info)
        other = self._by_host.setdefault(info.host, self)
        if other is not self:
            message = f"the agent at {self.agent.address} calls itself {info.host} too, as the one at {other.agent.address} does"
            raise Conflict(message, "give one another --host-name")
        self._info = info
        self._cancel_sent.clear()
        await self._close_lost_attempts()
        await self._reconciler.cancel_ended_attempts(info)
        self.downloads.reset(await self._writer.missing_artifacts(info.agent_id))
        self._stored_sequence = await self._writer.last_sequence(info.agent_id)
        await self.agent.present_epoch(info.agent_id)
        self.connected, self.trouble = True, ""
        self._stored_changed.set()
        self._orders_pending.set()
        self._writer.job_index.notify()

    def _check_compatibility(self, info: AgentInfo) -> None:
        """Raises Conflict for an agent that is too old or too new."""
        message, hint = agent_incompatibility(info.host, info.version, info.protocol)
        self.is_compatible = not message
        if message:
            raise Conflict(f"{message}: {hint}", hint)
        remark = clock_warning(self.agent.clock.ahead_ns / 1e9)
        if remark and not self._clock_logged:
            log.warning("%s: %s", info.host, remark)
        self._clock_logged = bool(remark)

    def _check_against_fleet_file(self, info: AgentInfo) -> None:
        """What the agent says of itself with what the fleet file says. Raises Conflict for another
        host's agent.
        """
        if self.fleet_host is not None and info.host != self.fleet_host.name:
            message = f"the agent at {self.agent.address} calls itself {info.host or 'nothing'}, the fleet file has {self.fleet_host.name} there"
            raise Conflict(
                message,
                f"fleetctl deploy {self.fleet_host.name} makes it that host, or correct its address in the fleet file",
            )
        differing = label_differences(self.fleet_host, info.labels)
        if differing and differing != self._logged_differences:
            log.warning("%s: label %s; the file's holds", self.host, ", ".join(differing))
        self._logged_differences = differing

    async def _close_lost_attempts(self) -> None:
        """Attempts that an earlier journal of this host held are gone with it: the new one will
        never tell their end.
        """
        for _, trial in self._writer.job_index.active_on(self.host):
            attempt = trial.newest
            if attempt is not None and attempt.agent_id and attempt.agent_id != self._info.agent_id:
                message = f"the agent of {self.host} lost its journal (agent {attempt.agent_id[:8]} is now {self._info.agent_id[:8]})"
                end = ended_by_controller(
                    attempt, ErrorKind.AGENT_RESTARTED, "agent_state_lost", message, time.time_ns()
                )
                await self._writer.save_attempt(trial.spec.trial_id, end)

    async def _follow_events(self) -> None:
        agent_id = self._info.agent_id
        async for event in self.agent.events(agent_id, self._stored_sequence):
            if event.body is None:
                log.info(
                    "%s: event %d is of a kind that this version does not know: its place is kept",
                    self.host,
                    event.sequence,
                )
            trial = await self._writer.record_event(agent_id, self.host, event, self.agent.clock)
            if trial is not None:
                self._handle_event(event, trial)
            elif isinstance(
                event.body, ev.EvidenceCollected | ev.RunFinished
            ):  # of a job that is only in the store any more
                self.downloads.add(await self._writer.missing_artifacts(agent_id))
            self._stored_sequence = event.sequence
            self._stored_changed.set()

    def _handle_event(self, event: ev.Event, trial: Trial) -> None:
        if isinstance(event.body, ev.RunFinished):
            self._writer.series.record_run(trial.spec, event.body.run, self.host)
            if event.body.run.artifact.name:
                self.downloads.add([event.body.run.artifact])
        if isinstance(event.body, ev.EvidenceCollected):
            self.downloads.add(event.body.artifacts)
        if isinstance(event.body, ev.TrialOver) and self._load_clusters.active_keys():
            self._orders_pending.set()

    async def _acknowledge_loop(self) -> None:
        """Tell the agent how far its events are stored: once for all that came since it was last
        told, and not urgently.
        """
        while True:
            await self._stored_changed.wait()
            self._stored_changed.clear()
            await self.acknowledge_stored()
            await asyncio.sleep(_ACKNOWLEDGE_PAUSE_S)

    async def acknowledge_stored(self) -> None:
        """Tell the agent what is stored now."""
        if not self.connected or not self._stored_sequence:
            return
        try:
            await self.agent.acknowledge(self._stored_sequence, self._info.agent_id)
        except FleetError as error:  # the next event or the next connection makes up for it
            log.info(
                "%s: events up to %d are stored and not acknowledged: %s",
                self.host,
                self._stored_sequence,
                error.message,
            )

    # Orders

    def notify_orders(self) -> None:
        """Something is to be begun or cancelled here. Returns at once: a host that hangs holds up
        no other.
        """
        self._orders_pending.set()

    async def _send_orders(self) -> None:
        """One task does both, so that a cancel never overtakes the start that it is about."""
        while True:
            await self._orders_pending.wait()
            self._orders_pending.clear()
            if not self.connected:
                continue  # connecting gives them again
            await self._release_load_hosts()
            for job, trial in self._writer.job_index.active_on(self.host):
                attempt = trial.newest
                try:
                    reason = (
                        "the job was cancelled"
                        if job.row.cancelled
                        else self._writer.job_index.end_reason(trial.spec.trial_id)
                    )
                    if reason and attempt is not None:
                        await self._cancel_attempt(trial, attempt, reason)
                    elif attempt is not None and attempt.phase is Phase.QUEUED:
                        lead = job.nodes[lead_and_rank(trial.spec.trial_id)[0]].spec.host
                        await self._start_attempt(
                            spec_for_agent(
                                trial.spec, attempt.number, self._by_host[lead].meeting_host
                            ),
                            attempt,
                        )
                except (HostUnreachable, Conflict) as error:
                    log.info("%s: %s", trial.spec.trial_id, error.message)
                    asyncio.get_running_loop().call_later(_ORDER_RETRY_S, self._orders_pending.set)

    async def _release_load_hosts(self) -> None:
        """The load hosts of attempts that are over."""
        active = {
            (trial.spec.trial_id, trial.newest.number)
            for _, trial in self._writer.job_index.active_on(self.host)
            if trial.newest
        }
        for key in self._load_clusters.active_keys():
            if key not in active:
                await self._load_clusters.tear_down(key)

    async def _start_attempt(self, spec: TrialSpec, attempt: Attempt) -> None:
        """Hand over an attempt that no event confirms yet; doing so twice is harmless."""
        room = self.usable_gpus(spec.engine.kind)
        if spec.engine.gpus > room:
            message = f"it needs {spec.engine.gpus} GPUs, host {self.host} has {room} now"
            await self._writer.save_attempt(
                spec.trial_id,
                ended_by_controller(
                    attempt, ErrorKind.CONFIG, "too_few_gpus", message, time.time_ns()
                ),
            )
            return
        try:
            if spec.load.hosts:
                await self._load_clusters.set_up(spec)
            await self.agent.start(spec)
        except LoadError as error:
            end = ended_by_controller(
                attempt, ErrorKind.HOST_UNREACHABLE, "load_host_away", error.message, time.time_ns()
            )
            await self._writer.save_attempt(spec.trial_id, end)
        except Superseded as error:
            await self._writer.save_attempt(
                spec.trial_id,
                ended_by_controller(
                    attempt, ErrorKind.CONFLICT, "superseded", error.message, time.time_ns()
                ),
            )
        except (HostUnreachable, Conflict):
            raise
        except FleetError as error:
            kind = ErrorKind.BUG if error.exit_code == error.exit_code.BUG else ErrorKind.CONFIG
            await self._writer.save_attempt(
                spec.trial_id,
                ended_by_controller(
                    attempt, kind, "refused_by_agent", error.message, time.time_ns()
                ),
            )

    async def _cancel_attempt(self, trial: Trial, attempt: Attempt, reason: str) -> None:
        """Ask the agent to end it. One that it does not know and of which no event came never
        began: it ends here.
        """
        key = trial.spec.trial_id, attempt.number
        if key in self._cancel_sent:
            return
        if await self.agent.cancel(*key, reason):
            self._cancel_sent.add(key)
            return
        if attempt.phase is not Phase.QUEUED:
            return
        current = next(
            (
                now
                for _, now in self._writer.job_index.active_on(self.host)
                if now.spec.trial_id == trial.spec.trial_id
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
