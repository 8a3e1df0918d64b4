"""Owns the controller's line to one host: connects, hands trials over, stores each event before it is acknowledged, fetches files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path

from fleet_controller.agents import AgentClient, AgentInfo
from fleet_controller.board import closed
from fleet_controller.core.state import Trial
from fleet_controller.desk import Desk
from fleet_controller.report.values import HostStatus
from fleet_protos import events as ev
from fleet_protos.errors import Conflict, ErrorKind, FleetError, HostUnreachable
from fleet_protos.trial import Artifact, EngineKind, Phase

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_FETCH_AGAIN_S = 2.0
_ASK_AGAIN_S = 1.0


class HostLine:
    """One agent as the controller follows it: connected or not, and what it owes."""

    def __init__(self, agent: AgentClient, desk: Desk, artifacts: Path, names: dict[str, HostLine]) -> None:
        self.agent = agent
        self._names = names  # which line speaks for which host
        self.trouble = ""
        self.connected = False
        self._info = AgentInfo()
        self._desk = desk
        self._artifacts = artifacts
        self._owed: dict[str, Artifact] = {}
        self._owes = asyncio.Event()
        self._paid = asyncio.Event()
        self._paid.set()
        self._ask_again_at_s = inf

    @property
    def host(self) -> str:
        """Its name as the agent tells it; empty before the first contact."""
        return self._info.host

    @property
    def labels(self) -> Mapping[str, str]:
        """What jobs select it by."""
        return self._info.labels

    def room_for(self, kind: EngineKind) -> int:
        """GPUs that servers of this kind may use here."""
        return {EngineKind.SGLANG: self._info.gpus, EngineKind.SIMULATED: self._info.simulated_gpus}.get(kind, 0)

    def status(self) -> HostStatus:
        """As it is listed."""
        info = self._info
        state = "connected" if self.connected else "unreachable"
        host = info.host or self.agent.address
        return HostStatus(host, self.agent.address, state, info.gpus, info.simulated_gpus, info.version, dict(info.labels), self.trouble)

    # Following

    async def follow(self) -> None:
        """Connect and follow for ever; a broken line is connected again with growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._connect()
                pause_s = _FIRST_PAUSE_S
                await self._follow_events()
            except FleetError as error:
                if self.connected or error.message != self.trouble:
                    log.warning("%s: %s", self.host or self.agent.address, error.message)
                self.trouble = error.message
            self.connected = False
            self._desk.board.tell()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _connect(self) -> None:
        self._info = await self.agent.describe()
        other = self._names.setdefault(self._info.host, self)
        if other is not self:
            raise Conflict(f"the agent at {self.agent.address} calls itself {self._info.host} too, as does {other.agent.address}")
        self.connected, self.trouble = True, ""
        await self._close_what_is_lost()
        for artifact in await self._desk.wanted_artifacts(self._info.agent_id):
            self._owe(artifact)
        await self.hand_over()
        await self.cancel_what_is_cancelled()
        self._desk.board.tell()

    async def _close_what_is_lost(self) -> None:
        """Attempts that an earlier journal of this host held are gone with it: the new one will never tell their end."""
        for _, trial in self._desk.board.active_on(self.host):
            attempt = trial.newest
            if attempt is not None and attempt.agent_id and attempt.agent_id != self._info.agent_id:
                message = f"the agent of {self.host} lost its journal (agent {attempt.agent_id[:8]} is now {self._info.agent_id[:8]})"
                end = closed(attempt, ErrorKind.AGENT_RESTARTED, "agent_state_lost", message, time.time_ns())
                await self._desk.save(trial.spec.trial_id, end)

    async def ask_again(self) -> None:
        """Hand over anew what the agent was too busy to take, after a pause."""
        if self.connected and time.monotonic() >= self._ask_again_at_s:
            await self.hand_over()

    async def hand_over(self) -> None:
        """Send each attempt that was begun and that no event confirms yet; sending one twice is harmless."""
        self._ask_again_at_s = inf
        for job, trial in self._desk.board.active_on(self.host):
            attempt = trial.newest
            if attempt is None or attempt.phase is not Phase.QUEUED or job.row.cancelled:
                continue
            try:
                await self.agent.start(replace(trial.spec, attempt=attempt.number))
            except HostUnreachable as error:
                self.trouble = error.message  # it is sent again when the line is up
            except Conflict as error:
                log.info("%s: %s", trial.spec.trial_id, error.message)
                self._ask_again_at_s = time.monotonic() + _ASK_AGAIN_S
            except FleetError as error:
                end = closed(attempt, ErrorKind.CONFIG, "refused_by_agent", error.message, time.time_ns())
                await self._desk.save(trial.spec.trial_id, end)

    async def cancel_what_is_cancelled(self) -> None:
        """Tell the agent of each active attempt whose job was cancelled."""
        for job, trial in self._desk.board.active_on(self.host):
            if job.row.cancelled and trial.newest is not None:
                try:
                    await self.agent.cancel(trial.spec.trial_id, trial.newest.number, "the job was cancelled")
                except HostUnreachable as error:
                    self.trouble = error.message  # told again when the line is up

    async def _follow_events(self) -> None:
        agent_id = self._info.agent_id
        async for event in self.agent.events(agent_id, await self._desk.last_sequence(agent_id)):
            trial = await self._desk.record(agent_id, self.host, event)
            if trial is not None:
                self._take(event, trial)
            await self.agent.acknowledge(event.sequence)

    def _take(self, event: ev.Event, trial: Trial) -> None:
        if isinstance(event.body, ev.RunFinished):
            self._desk.series.run(trial.spec, event.body.run, self.host)
            if event.body.run.artifact.name:
                self._owe(event.body.run.artifact)
        if isinstance(event.body, ev.EvidenceCollected):
            for artifact in event.body.artifacts:
                self._owe(artifact)

    # Files

    def _owe(self, artifact: Artifact) -> None:
        self._owed[artifact.name] = artifact
        self._owes.set()
        self._paid.clear()

    async def all_fetched(self) -> None:
        """Returns when no file is owed."""
        await self._paid.wait()

    async def fetch_files(self) -> None:
        """Fetch what is owed, one file at a time, for ever; one that fails is tried again after the others."""
        while True:
            await self._owes.wait()
            self._owes.clear()
            for artifact in list(self._owed.values()):
                await self._fetch(artifact)
            if self._owed:
                asyncio.get_running_loop().call_later(_FETCH_AGAIN_S, self._owes.set)
            else:
                self._paid.set()

    async def _fetch(self, artifact: Artifact) -> None:
        try:
            await self.agent.fetch(artifact, self._artifacts / artifact.name)
        except FleetError as error:
            log.warning("%s: %s", artifact.name, error.message)
            return
        await self._desk.artifact_fetched(artifact.name)
        self._owed.pop(artifact.name, None)
