"""Owns which hosts get trials: drained by a user, set aside for their failures, looked at and brought back. The core judges.

What is decided is in the store before it counts, so it holds over a restart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fleet_controller.core.controller_api import HostStatus
from fleet_controller.core.gang import place_of
from fleet_controller.core.quarantine import (
    PROBE_FIRST_S,
    HostRecord,
    after_attempt,
    drain,
    on_probation,
    points,
    probe_pause_s,
    state_of,
    undrain,
)
from fleet_controller.core.schedule_inputs import Host, why_waits
from fleet_controller.core.trial_state import Trial
from fleet_controller.hosts.host_checks import check_line
from fleet_controller.hosts.host_connection import HostLine
from fleet_controller.jobs.state_writer import Desk
from fleet_protos.trial_types import EngineKind, Outcome

log = logging.getLogger(__name__)

_TICK_S = 1.0


class Care:
    """The standing of each host."""

    def __init__(self, desk: Desk, lines: Callable[[], Sequence[HostLine]], probe_first_s: float = PROBE_FIRST_S) -> None:
        self._desk = desk
        self._lines = lines
        self._probe_first_s = probe_first_s
        self._records: dict[str, HostRecord] = {}
        self._closed: dict[str, str] = {}  # host → why it gets no trials, as jobs were last told
        self._looks: dict[str, tuple[int, float]] = {}  # host → looks since it was set aside, monotonic seconds of the next

    async def load(self) -> None:
        """What an earlier controller decided."""
        self._records = {record.name: record for record in await self._desk.hosts()}

    def record(self, host: str) -> HostRecord:
        """What is decided of a host."""
        return self._records.get(host) or HostRecord(host)

    async def drain(self, host: str, why: str) -> None:
        """No new trials there."""
        await self._decide(drain(self.record(host), why))
        log.info("%s: drained%s", host, f": {why}" if why else "")

    async def undrain(self, host: str) -> None:
        """Trials there again, whatever was held against it."""
        await self._decide(undrain(self.record(host)))
        log.info("%s: takes trials again", host)

    # What the scheduler sees

    def hosts(self) -> list[Host]:
        """Every host at this moment."""
        running, borrowed = self._desk.board.running(), self._desk.board.borrowed()
        return [self._host(line, running.get(line.host, ()), line.host in borrowed) for line in self._lines() if line.host]

    def _host(self, line: HostLine, running: Sequence[Trial], is_borrowed: bool) -> Host:
        kinds = (EngineKind.SGLANG, EngineKind.SIMULATED)
        gpus = {kind: line.room_for(kind) for kind in kinds}
        used = {kind: sum(trial.spec.engine.gpus for trial in running if trial.spec.engine.kind is kind) for kind in kinds}
        return Host(
            line.host,
            line.labels,
            self._closed_for(line),
            len(running) + is_borrowed,
            not is_borrowed and all(trial.spec.shared for trial in running),
            gpus,
            {kind: max(0, gpus[kind] - used[kind]) for kind in kinds},
            lends=not running and not is_borrowed,
            lends_not_for=self.record(line.host).closed_for or ("" if line.connected else "away") or line.leaving_word,
        )

    def _closed_for(self, line: HostLine) -> str:
        return self.record(line.host).closed_for or ("" if line.connected else "away") or line.takes_no_trials

    def tell(self, hosts: Sequence[Host]) -> None:
        """Bring up to date what jobs say they wait for, and the series of hosts."""
        known = {host.name: host for host in hosts}
        if not self._desk.trouble and all(line.was_tried for line in self._lines()):  # a store that takes nothing is told instead
            self._tell_jobs(known)
        counts: dict[str, int] = {}
        for line in self._lines():
            word = self._state(line, known.get(line.host))
            counts[word] = counts.get(word, 0) + 1
        self._desk.hosts_series.show(counts)

    def _tell_jobs(self, hosts: Mapping[str, Host]) -> None:
        closed = {name: host.closed_for for name, host in hosts.items()}
        for job in self._desk.board.open_jobs:
            if closed == self._closed and job.told_of and job.told_of[0] is job.waiting and job.told_of[1] == job.trouble:
                continue
            waits_for = why_waits(job.waiting, hosts)
            trouble = f"waits for {waits_for}" if waits_for else ""
            job.told_of = job.waiting, trouble
            if trouble != job.trouble:
                job.trouble = trouble
                self._desk.board.tell()
        self._closed = closed

    def _state(self, line: HostLine, host: Host | None) -> str:
        record = self.record(line.host)
        holds = {"away": not line.connected, "drained": record.drained, "aside": bool(record.aside)}
        return state_of({**holds, "busy": host is not None and host.running > 0})

    def told(self, status: HostStatus) -> HostStatus:
        """The status of a host with what is decided about it."""
        record, running = self.record(status.host), self._desk.board.running().get(status.host, [])
        active = " ".join(f"{trial.spec.trial_id}/{trial.newest.number}" for trial in running if trial.newest is not None)
        return replace(
            status,
            drained=record.drained,
            drain_reason=record.drain_reason,
            aside=record.aside,
            aside_since_unix_ns=record.aside_since_unix_ns,
            active_trial=active or status.active_trial,
        )

    # What failures say

    async def weigh(self) -> None:
        """Take in the attempts that ended since the last call."""
        while self._desk.ended:
            trial_id, attempt = self._desk.ended[0]
            job = self._desk.board.job_of(trial_id)
            node = job.nodes[trial_id] if job else None
            if job is not None and node is not None:
                record = self.record(node.spec.host)
                weight = points(attempt, attempt.outcome is Outcome.FAILED and job.works_elsewhere(job.trials[place_of(trial_id)[0]]))
                after = after_attempt(record, trial_id, attempt, weight, time.time_ns())
                if after != record:
                    await self._decide(after)
                if after.aside and not record.aside:
                    log.warning("%s: set aside after %s", after.name, after.aside)
            self._desk.ended.popleft()

    async def _decide(self, record: HostRecord) -> None:
        await self._desk.save_host(record)
        self._records[record.name] = record
        if not record.aside:
            self._looks.pop(record.name, None)
        self._desk.board.tell()

    # Probes

    async def look_again(self) -> None:
        """For ever: look at hosts that were set aside, each time after a longer pause; one with nothing to find gets a trial again."""
        while True:
            for line in self._lines():
                if self.record(line.host).aside and not self.record(line.host).drained and line.connected:
                    await self._look(line)
            await asyncio.sleep(min(_TICK_S, self._probe_first_s))

    async def _look(self, line: HostLine) -> None:
        record, now_s = self.record(line.host), time.monotonic()
        looks, due_s = self._looks.setdefault(line.host, (0, now_s + probe_pause_s(record, 0, self._probe_first_s)))
        if now_s < due_s:
            return
        found = await check_line(line)
        record = self.record(line.host)  # a user may have changed it meanwhile
        if not record.aside:
            return
        if found.reached and not found.errors:
            log.info("%s: nothing is found any more; the next trial there decides", line.host)
            await self._decide(on_probation(record))
            return
        pause_s = probe_pause_s(record, looks + 1, self._probe_first_s)
        log.info("%s: still set aside (%s); the next look is in %.0f s", line.host, found.errors or "not reached", pause_s)
        self._looks[line.host] = looks + 1, time.monotonic() + pause_s
