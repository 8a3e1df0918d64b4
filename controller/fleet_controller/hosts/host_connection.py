"""Owns the controller's line to one host: connects, hands trials over, stores each event before it is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fleet_controller.core.compatibility import clock_remark, not_understood
from fleet_controller.core.controller_api import HostStatus
from fleet_controller.core.gang import meeting_host, place_of, placed
from fleet_controller.core.host_view import NOT_KNOWN, differences, gpus_of, labels_of
from fleet_controller.core.inventory import FleetHost
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.hosts.agent_client import AgentClient, AgentInfo
from fleet_controller.hosts.artifact_downloads import Files
from fleet_controller.hosts.load_cluster import Gathering
from fleet_controller.hosts.reconcile import Aftermath
from fleet_controller.hosts.targets import LOCAL, Peer, Ways, direct_address
from fleet_controller.jobs.job_index import closed, wait_for
from fleet_controller.jobs.state_writer import Desk
from fleet_controller.planning.admission_preview import Permit
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
_LOOK_PAUSE_S = 3.0
_AGAIN_S = 2.0  # until an order that the host could not take is given again


class HostLine:
    """One agent as the controller follows it: connected or not, and what it was told."""

    def __init__(self, peer: Peer, desk: Desk, artifacts: Path, names: dict[str, HostLine], ways: Ways = LOCAL) -> None:
        self.agent = AgentClient(peer.address)
        self.known = peer.known  # what the fleet file says of it
        self._ways = ways
        self._names = names  # which line speaks for which host
        if peer.known is not None:
            names.setdefault(peer.known.name, self)
        self.trouble = ""
        self.connected = False
        self.is_understood = True  # its agent speaks a contract near enough to ours
        self._left_at_s = time.monotonic()  # when it was last there; see `away_s`
        self.leaving = False  # it was taken out of the fleet file
        self.files = Files(self.agent, desk, artifacts)
        self._aftermath = Aftermath(self.agent, desk, self.files)
        self.agent.lease = desk.store.lease
        self._info = AgentInfo()
        self._desk = desk
        self._orders = asyncio.Event()
        self._gathering = Gathering(names)  # for trials that are led from here
        self._stored = 0
        self._news = asyncio.Event()
        self._now = asyncio.Event()
        self._told_to_end: set[tuple[str, int]] = set()  # over this connection: asking once is enough
        self._told_labels: tuple[str, ...] = ()
        self._told_clock = False
        self._last_trouble = ""  # kept while connected, so that what comes again at once is told once

    @property
    def host(self) -> str:
        """Its name in the fleet file, else as the agent tells it; empty before the first contact."""
        return self.known.name if self.known else self._info.host

    @property
    def labels(self) -> Mapping[str, str]:
        """What jobs select it by."""
        return labels_of(self.known, self._info.labels)

    @property
    def meeting_host(self) -> str:
        """Where the other hosts of a server meet this one."""
        return meeting_host(direct_address(self.known) if self.known else self.agent.address, self.labels.get("address", ""))

    @property
    def was_tried(self) -> bool:
        """It is connected, or what stands in the way is known."""
        return self.connected or bool(self.trouble)

    @property
    def takes_no_trials(self) -> str:
        """Why it takes none though it answers; empty when it does."""
        if self.leaving_word:
            return self.leaving_word
        return "it serves load only" if self.load_only else self._info.takes_no_trials

    @property
    def leaving_word(self) -> str:
        """Why nothing new begins there; empty while it is in the fleet."""
        return "it was taken out of the fleet file" if self.leaving else ""

    @property
    def load_only(self) -> bool:
        """It drives load for other hosts and never gets a trial."""
        return self._info.load_only or (self.known is not None and self.known.load_only)

    @property
    def permit(self) -> Permit:
        """What its agent says that it allows jobs."""
        info = self._info
        return Permit(info.strict, info.allowed_pythons, info.allowed_images, info.server_python, info.server_image)

    def room_for(self, kind: EngineKind) -> int:
        """GPUs that servers of this kind may use here."""
        told = {EngineKind.SGLANG: self._info.gpus, EngineKind.SIMULATED: self._info.simulated_gpus}.get(kind)
        if told is None:
            return 0
        return gpus_of(self.known, told if self._info.agent_id else None, kind is EngineKind.SIMULATED)

    def status(self) -> HostStatus:
        """As it is listed."""
        info, known = self._info, self.known or FleetHost()
        return HostStatus(
            host=self.host or self.agent.address,
            address=direct_address(known) if self.known else self.agent.address,
            state="connected" if self.connected else "unreachable" if self.is_understood else "incompatible",
            gpus=self._gpus_told(EngineKind.SGLANG),
            simulated_gpus=self._gpus_told(EngineKind.SIMULATED),
            version=info.version,
            labels=dict(self.labels),
            message=self._remarks if self.connected else self.trouble or "no answer yet",
            clock_ahead_s=self.agent.clock.ahead_ns / 1e9,
            certificate_expires_unix_s=info.certificate_expires_unix_s,
            load_only=self.load_only,
            cost_per_hour=known.cost_per_hour,
        )

    @property
    def _remarks(self) -> str:
        """What is to be known of a host that is connected."""
        waits = f"takes no new trials: {self._info.takes_no_trials}" if self._info.takes_no_trials else ""
        return "; ".join(filter(None, (waits, self.files.trouble, clock_remark(self.agent.clock.ahead_ns / 1e9))))

    def away_s(self, now_s: float) -> float:
        """Monotonic seconds for which it has been away, or since this controller began to look for it; 0 while it is there."""
        return 0.0 if self.connected else now_s - self._left_at_s

    def _gpus_told(self, kind: EngineKind) -> int:
        room = self.room_for(kind)
        return 0 if room == NOT_KNOWN else room

    async def work(self) -> None:
        """Follow the agent, give it its orders and fetch its files, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._follow(), self._give_orders(), self._acknowledge(), self._look(), self.files.fetch()):
                tasks.create_task(work)

    # Following

    async def _follow(self) -> None:
        """Connect and follow; a broken line is connected again with growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            stored = self._stored
            try:
                await self._connect()
                await self._follow_events()
            except FleetError as error:
                if isinstance(error, StoreUnusable):  # that is no fault of the host, and not counted as its being away
                    self._left_at_s = time.monotonic()
                cause = self.cause_of(error)
                told = f"{cause.message}: {cause.hint}" if isinstance(cause, ConfigError) and cause.hint else cause.message
                if told != self.trouble and not (self.connected and self._last_trouble == told):
                    log.warning("%s: %s", self.host or self.agent.address, told)
                self.trouble = self._last_trouble = told
            self._last_trouble = "" if self._stored > stored else self._last_trouble
            if self.connected:
                self.connected, self._left_at_s = False, time.monotonic()
            self._desk.board.tell()
            if self._stored > stored:  # a line that brought something; one that breaks again at once is not tried ever faster
                pause_s = _FIRST_PAUSE_S
            await wait_for(self._now, pause_s)
            pause_s = _FIRST_PAUSE_S if self._now.is_set() else min(pause_s * 2, _LAST_PAUSE_S)
            self._now.clear()

    def cause_of(self, error: FleetError) -> FleetError:
        """What is to be told when a call failed: that there is no certificate to know the host by, before all that follows from it."""
        try:
            if self.known is not None:
                self._ways.proofs(self.known.name)
        except ConfigError as cause:
            return cause
        return error

    async def _look(self) -> None:
        """Every few seconds while it is connected: its room, its clock, and what it keeps for us."""
        while True:
            await asyncio.sleep(_LOOK_PAUSE_S)
            if not self.connected:
                continue
            try:
                info = await self.agent.describe()
                if info.agent_id == self._info.agent_id:
                    before, self._info = self._info.takes_no_trials, info
                    if info.takes_no_trials != before:
                        log.info("%s: %s", self.host, info.takes_no_trials or "takes trials again")
                        self._desk.board.tell()
                    await self._aftermath.end_what_is_over(info)
                    await self._aftermath.release(info, self._stored)
            except FleetError as error:  # the line is looked after where events are followed
                log.debug("%s: %s", self.host, error.message)

    async def change(self, known: FleetHost) -> None:
        """The fleet file says otherwise of this host now; it is connected anew when that is about the way there."""
        before, self.known, self.leaving = self.known, known, False
        way = known.address, known.port, known.through_ssh, known.ssh
        if before is not None and way != (before.address, before.port, before.through_ssh, before.ssh):
            await self.agent.close()
            self.try_now()

    def try_now(self) -> None:
        """The agent was just started: do not wait for the end of the pause."""
        self._now.set()

    async def _connect(self) -> None:
        if self.known is not None:
            host = self.known
            called = f"agent at {direct_address(host)} through ssh" if host.through_ssh else ""
            await self.agent.move(await self._ways.reach(host), self._ways.proofs(host.name), agent_name(host.name), called)
        info = await self.agent.describe()
        self._understand(info)
        self._compare(info)
        other = self._names.setdefault(info.host, self)
        if other is not self:
            told = f"the agent at {self.agent.address} calls itself {info.host} too, as the one at {other.agent.address} does"
            raise Conflict(told, "give one another --host-name")
        self._info = info
        self._told_to_end.clear()
        await self._close_what_is_lost()
        await self._aftermath.end_what_is_over(info)
        self.files.replace(await self._desk.wanted_artifacts(info.agent_id))
        self._stored = await self._desk.last_sequence(info.agent_id)
        await self.agent.claim(info.agent_id)
        self.connected, self.trouble = True, ""
        self._news.set()
        self._orders.set()
        self._desk.board.tell()

    def _understand(self, info: AgentInfo) -> None:
        """Raises Conflict for an agent that is too old or too new."""
        message, hint = not_understood(info.host, info.version, info.protocol)
        self.is_understood = not message
        if message:
            raise Conflict(f"{message}: {hint}", hint)
        remark = clock_remark(self.agent.clock.ahead_ns / 1e9)
        if remark and not self._told_clock:
            log.warning("%s: %s", info.host, remark)
        self._told_clock = bool(remark)

    def _compare(self, info: AgentInfo) -> None:
        """What the agent says of itself with what the fleet file says. Raises Conflict for another host's agent."""
        if self.known is not None and info.host != self.known.name:
            told = f"the agent at {self.agent.address} calls itself {info.host or 'nothing'}, the fleet file has {self.known.name} there"
            raise Conflict(told, f"fleetctl deploy {self.known.name} makes it that host, or correct its address in the fleet file")
        differing = differences(self.known, info.labels)
        if differing and differing != self._told_labels:
            log.warning("%s: label %s; the file's holds", self.host, ", ".join(differing))
        self._told_labels = differing

    async def _close_what_is_lost(self) -> None:
        """Attempts that an earlier journal of this host held are gone with it: the new one will never tell their end."""
        for _, trial in self._desk.board.active_on(self.host):
            attempt = trial.newest
            if attempt is not None and attempt.agent_id and attempt.agent_id != self._info.agent_id:
                message = f"the agent of {self.host} lost its journal (agent {attempt.agent_id[:8]} is now {self._info.agent_id[:8]})"
                end = closed(attempt, ErrorKind.AGENT_RESTARTED, "agent_state_lost", message, time.time_ns())
                await self._desk.save(trial.spec.trial_id, end)

    async def _follow_events(self) -> None:
        agent_id = self._info.agent_id
        async for event in self.agent.events(agent_id, self._stored):
            if event.body is None:
                log.info("%s: event %d is of a kind that this version does not know: its place is kept", self.host, event.sequence)
            trial = await self._desk.record(agent_id, self.host, event, self.agent.clock)
            if trial is not None:
                self._take(event, trial)
            elif isinstance(event.body, ev.EvidenceCollected | ev.RunFinished):  # of a job that is only in the store any more
                self.files.owe(await self._desk.wanted_artifacts(agent_id))
            self._stored = event.sequence
            self._news.set()

    def _take(self, event: ev.Event, trial: Trial) -> None:
        if isinstance(event.body, ev.RunFinished):
            self._desk.series.record_run(trial.spec, event.body.run, self.host)
            if event.body.run.artifact.name:
                self.files.owe([event.body.run.artifact])
        if isinstance(event.body, ev.EvidenceCollected):
            self.files.owe(event.body.artifacts)
        if isinstance(event.body, ev.TrialOver) and self._gathering.gathered():
            self._orders.set()

    async def _acknowledge(self) -> None:
        """Tell the agent how far its events are stored: once for all that came since it was last told, and not urgently."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.settle()
            await asyncio.sleep(_ACKNOWLEDGE_PAUSE_S)

    async def settle(self) -> None:
        """Tell the agent what is stored now."""
        if not self.connected or not self._stored:
            return
        try:
            await self.agent.acknowledge(self._stored, self._info.agent_id)
        except FleetError as error:  # the next event or the next connection makes up for it
            log.info("%s: events up to %d are stored and not acknowledged: %s", self.host, self._stored, error.message)

    # Orders

    def give_orders(self) -> None:
        """Something is to be begun or cancelled here. Returns at once: a host that hangs holds up no other."""
        self._orders.set()

    async def _give_orders(self) -> None:
        """One task does both, so that a cancel never overtakes the start that it is about."""
        while True:
            await self._orders.wait()
            self._orders.clear()
            if not self.connected:
                continue  # connecting gives them again
            await self._send_home()
            for job, trial in self._desk.board.active_on(self.host):
                attempt = trial.newest
                try:
                    reason = "the job was cancelled" if job.row.cancelled else self._desk.board.to_end(trial.spec.trial_id)
                    if reason and attempt is not None:
                        await self._cancel(trial, attempt, reason)
                    elif attempt is not None and attempt.phase is Phase.QUEUED:
                        lead = job.nodes[place_of(trial.spec.trial_id)[0]].spec.host
                        await self._start(placed(trial.spec, attempt.number, self._names[lead].meeting_host), attempt)
                except (HostUnreachable, Conflict) as error:
                    log.info("%s: %s", trial.spec.trial_id, error.message)
                    asyncio.get_running_loop().call_later(_AGAIN_S, self._orders.set)

    async def _send_home(self) -> None:
        """The load hosts of attempts that are over."""
        active = {(trial.spec.trial_id, trial.newest.number) for _, trial in self._desk.board.active_on(self.host) if trial.newest}
        for key in self._gathering.gathered():
            if key not in active:
                await self._gathering.leave(key)

    async def _start(self, spec: TrialSpec, attempt: Attempt) -> None:
        """Hand over an attempt that no event confirms yet; doing so twice is harmless."""
        room = self.room_for(spec.engine.kind)
        if spec.engine.gpus > room:
            message = f"it needs {spec.engine.gpus} GPUs, host {self.host} has {room} now"
            await self._desk.save(spec.trial_id, closed(attempt, ErrorKind.CONFIG, "too_few_gpus", message, time.time_ns()))
            return
        try:
            if spec.load.hosts:
                await self._gathering.gather(spec)
            await self.agent.start(spec)
        except LoadError as error:
            end = closed(attempt, ErrorKind.HOST_UNREACHABLE, "load_host_away", error.message, time.time_ns())
            await self._desk.save(spec.trial_id, end)
        except Superseded as error:
            await self._desk.save(spec.trial_id, closed(attempt, ErrorKind.CONFLICT, "superseded", error.message, time.time_ns()))
        except (HostUnreachable, Conflict):
            raise
        except FleetError as error:
            kind = ErrorKind.BUG if error.exit_code == error.exit_code.BUG else ErrorKind.CONFIG
            await self._desk.save(spec.trial_id, closed(attempt, kind, "refused_by_agent", error.message, time.time_ns()))

    async def _cancel(self, trial: Trial, attempt: Attempt, reason: str) -> None:
        """Ask the agent to end it. One that it does not know and of which no event came never began: it ends here."""
        key = trial.spec.trial_id, attempt.number
        if key in self._told_to_end:
            return
        if await self.agent.cancel(*key, reason):
            self._told_to_end.add(key)
            return
        if attempt.phase is not Phase.QUEUED:
            return
        now = next((now for _, now in self._desk.board.active_on(self.host) if now.spec.trial_id == trial.spec.trial_id), None)
        if now is not None and now.newest == attempt:
            end = closed(attempt, ErrorKind.NONE, "", "cancelled before it began", time.time_ns())
            await self._desk.save(trial.spec.trial_id, replace(end, outcome=Outcome.CANCELLED))
