"""The controller of a world in memory: its real core over a store that survives it; its lines to
hosts lose and delay what it says.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fleet_controller.core.event_rules import may_report
from fleet_controller.core.gang import fold_gangs, nodes_to_end
from fleet_controller.core.give_up import UNPLACED, attempts_to_give_up
from fleet_controller.core.schedule_inputs import SchedulableHost as Standing
from fleet_controller.core.schedule_inputs import waiting_job_of
from fleet_controller.core.scheduler import TrialStart, hopeless_trials, next_starts
from fleet_controller.core.trial_state import (
    HOST_GIVEN_UP,
    NO_SKEW,
    Attempt,
    HostClock,
    Trial,
    apply_event,
    is_over,
)
from fleet_protos import events as ev
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict, ErrorKind, Superseded
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import Outcome, Phase, RunResult, TrialSpec
from tests.unit.world import Key, ModelHost, Process

RunKey = tuple[str, int, str, int]  # trial, attempt, workload, index
GIVE_UP_S = 60.0


class StoreFull(Exception):
    """Nothing can be written."""


@dataclass
class ModelStore:
    """What the database holds: one job of these nodes. Written in whole transactions, by the newest
    start of the controller alone.
    """

    nodes: dict[str, Trial]
    epoch: int = 0
    full: bool = False
    cancelled: bool = False
    last_sequence: dict[str, int] = field(default_factory=dict)
    events: dict[tuple[str, int], ev.Event] = field(default_factory=dict)
    runs: dict[RunKey, RunResult] = field(default_factory=dict)
    foreign: set[tuple[str, int, str]] = field(
        default_factory=set
    )  # attempts that another journal tells of too: the first one counts

    def require_epoch(self, epoch: int) -> None:
        """As `Store._writing`."""
        if self.full:
            raise StoreFull
        if epoch != self.epoch:
            raise Conflict("another controller has taken over")

    def save_attempt(self, epoch: int, trial_id: str, attempt: Attempt) -> None:
        self.require_epoch(epoch)
        self._put(trial_id, attempt)

    def _put(self, trial_id: str, attempt: Attempt) -> None:
        """An end is an end: only one that was given up may turn out to have been well."""
        before = next(
            (known for known in self.nodes[trial_id].attempts if known.number == attempt.number),
            None,
        )
        if before is not None and before.is_over:
            same = (attempt.phase, attempt.outcome, attempt.kind) == (
                before.phase,
                before.outcome,
                before.kind,
            )
            assert same or (
                before.failure_class == HOST_GIVEN_UP and attempt.outcome is Outcome.OK
            ), f"{before} became {attempt}"
        self.nodes[trial_id] = self.nodes[trial_id].with_attempt(attempt)

    def record_event(
        self, epoch: int, host: ModelHost, agent_id: str, event: ev.Event, clock: HostClock
    ) -> None:
        """As `Store.record`."""
        self.require_epoch(epoch)
        last = self.last_sequence.get(agent_id, 0)
        if event.sequence <= last:
            return
        assert event.sequence == last + 1, (
            f"event {event.sequence} of {host.name} after {last}: one was lost"
        )
        self.last_sequence[agent_id] = event.sequence
        node = self.nodes[event.trial_id]
        newest = max((attempt.number for attempt in node.attempts), default=0)
        before = next(
            (attempt for attempt in node.attempts if attempt.number == event.attempt),
            Attempt(event.attempt),
        )
        if not may_report(before, agent_id, host.name, node.spec.host, newest):
            self.foreign.add((event.trial_id, event.attempt, agent_id))
            return
        self.events[agent_id, event.sequence] = event
        assert event.attempt <= newest, "an attempt that nobody began"
        self._put(
            event.trial_id,
            apply_event(before, event, agent_id, clock, is_newest=event.attempt >= newest),
        )
        if isinstance(event.body, ev.RunFinished):
            key = (event.trial_id, event.attempt, event.body.run.workload, event.body.run.index)
            assert key not in self.runs, f"run {key} is stored twice"
            self.runs[key] = event.body.run

    def trials(self) -> list[Trial]:
        """The nodes of each gang as one."""
        return fold_gangs(self.nodes.values())

    @property
    def is_over(self) -> bool:
        return all(is_over(trial, self.cancelled) for trial in self.trials())


@dataclass
class ModelConnection:
    """What a controller process knows of one host."""

    host: ModelHost
    agent_id: str = ""
    connected: bool = False
    stored: int = 0
    left_at_s: float = 0.0
    clock: HostClock = NO_SKEW
    process: Process | None = None  # of the agent, as it was when they met
    asked: tuple[str, Key] | None = None  # the one order that it waits for an answer to
    cancel_sent: set[Key] = field(default_factory=set)


@dataclass
class Request:
    """An order on its way. `sender` may be gone when it arrives."""

    sender: ModelController
    host: ModelHost
    verb: str
    key: Key


class ModelController:
    """One process. Its store survives it."""

    def __init__(self, store: ModelStore, hosts: Iterable[ModelHost], now_s: float) -> None:
        store.epoch += 1
        self.store, self.controller_epoch = store, ControllerEpoch("store", store.epoch, PROTOCOL)
        self.connections = {host.name: ModelConnection(host, left_at_s=now_s) for host in hosts}
        self.alive = True
        self.now_s = now_s

    @property
    def epoch(self) -> int:
        return self.controller_epoch.epoch

    def _now_ns(self) -> int:
        return round(self.now_s * 1e9)

    # Scheduling: as `Fleet._keep_starting`

    def tick(self) -> None:
        """Close what is hopeless, give up what is away, begin what may begin."""
        trials = self.store.trials()
        away_s = {
            name: 0.0 if line.connected else self.now_s - line.left_at_s
            for name, line in self.connections.items()
        }
        away_s[UNPLACED] = min(away_s.values())
        waited_for = [trial for trial in trials if not is_over(trial, self.store.cancelled)]
        for end in list(attempts_to_give_up(waited_for, away_s, GIVE_UP_S, self._now_ns())):
            self.store.save_attempt(self.epoch, end.trial_id, end.attempt)
        if self.store.cancelled:
            return
        for end in hopeless_trials(self.store.trials()):
            over = Attempt(
                1,
                phase=Phase.OVER,
                outcome=Outcome.FAILED,
                kind=end.kind,
                failure_class=end.failure_class,
            )
            self.store.save_attempt(self.epoch, end.trial_id, over)
        for start in next_starts(
            [waiting_job_of("job", self.store.trials())], self._schedulable_hosts(), self._now_ns()
        ):
            self._begin(start)

    def _schedulable_hosts(self) -> list[Standing]:
        active = Counter(
            host for trial in self.store.trials() if trial.is_active for host in trial.hosts
        )
        closed = {
            name: "" if line.connected and not line.host.full else "away"
            for name, line in self.connections.items()
        }
        return [Standing(name, {}, closed[name], active[name]) for name in self.connections]

    def _begin(self, start: TrialStart) -> None:
        self.store.require_epoch(self.epoch)
        for trial_id in (start.trial_id, *(member for member, _ in start.members)):
            self.store.save_attempt(self.epoch, trial_id, Attempt(start.attempt))

    # Lines: as `HostLine`

    def connect(self, line: ModelConnection) -> None:
        """Describe, reconcile, follow."""
        host = line.host
        if not (host.linked and host.process) or line.connected:
            return
        host.accept_epoch(self.controller_epoch)
        line.agent_id, line.cancel_sent, line.asked = host.agent_id, set(), None
        line.clock = HostClock(round(host.ahead_s * 1e9), self._now_ns())
        for node in self._active_on(host.name):
            attempt = node.newest
            if attempt is not None and attempt.agent_id and attempt.agent_id != host.agent_id:
                lost = replace(
                    attempt,
                    phase=Phase.OVER,
                    outcome=Outcome.FAILED,
                    kind=ErrorKind.AGENT_RESTARTED,
                )
                self.store.save_attempt(self.epoch, node.spec.trial_id, lost)
        self.reconcile(line)
        line.stored = self.store.last_sequence.get(host.agent_id, 0)
        line.connected, line.process = True, host.process
        host.process.streams += 1

    def reconcile(self, line: ModelConnection) -> None:
        """End there what is over here: as `Aftermath.end_what_is_over`."""
        for trial_id, number in list(line.host.process.runners if line.host.process else ()):
            attempt = next(
                (known for known in self.store.nodes[trial_id].attempts if known.number == number),
                None,
            )
            if attempt is not None and attempt.is_over:
                line.host.accept_epoch(self.controller_epoch)
                line.host.cancel((trial_id, number))

    def disconnect(self, line: ModelConnection) -> None:
        """The line broke, on whichever side."""
        if line.connected:
            line.connected, line.left_at_s, line.asked = False, self.now_s, None
            if line.process is not None and line.process is line.host.process:
                line.process.streams -= 1
                line.process.quiet_since_s = self.now_s

    def die(self) -> None:
        """The process is gone; what it sent may still arrive."""
        self.alive = False
        for line in self.connections.values():
            self.disconnect(line)

    def read_event(self, line: ModelConnection) -> bool:
        """One event of the stream; False when none is there."""
        host = line.host
        if not (
            line.connected
            and host.linked
            and host.process is line.process
            and host.epoch == self.controller_epoch
        ):
            self.disconnect(line)
            return False
        if line.stored >= host.last_sequence:
            return False
        event = host.journal[line.stored - host.dropped]
        self.store.record_event(
            self.epoch, host, line.agent_id, event, replace(line.clock, now_unix_ns=self._now_ns())
        )
        line.stored = event.sequence
        return True

    def _active_on(self, host: str) -> list[Trial]:
        return [
            node for node in self.store.nodes.values() if node.is_active and node.spec.host == host
        ]

    def order(self, line: ModelConnection) -> Iterator[Request]:
        """What is to be begun or ended there, one order at a time."""
        if not line.connected or line.asked is not None:
            return
        ends = {
            name
            for trial in self.store.trials()
            if trial.nodes and trial.is_active
            for name in nodes_to_end(trial)
        }
        for node in self._active_on(line.host.name):
            attempt, trial_id = node.newest, node.spec.trial_id
            assert attempt is not None
            key = (trial_id, attempt.number)
            if (self.store.cancelled or trial_id in ends) and key not in line.cancel_sent:
                line.asked = ("cancel", key)
            elif (
                attempt.phase is Phase.QUEUED and not self.store.cancelled and trial_id not in ends
            ):
                line.asked = ("start", key)
            if line.asked:
                yield Request(self, line.host, *line.asked)
                return

    def answer(self, request: Request, rng: random.Random) -> None:
        """The request arrives at its host, early or late, once or twice; the answer may find nobody
        who still waits for it.
        """
        host, line = request.host, self.connections[request.host.name]
        waits = (
            self.alive
            and line.connected
            and line.asked == (request.verb, request.key)
            and line.process is host.process
        )
        if waits:
            line.asked = None  # answered, or given up: then it is given again
        learns = waits and rng.random() < 0.9
        if not (host.linked and host.process):
            return
        try:
            active = self._carried_out(host, request)
        except Superseded:
            if learns:
                self._close(request.key, Outcome.FAILED, ErrorKind.CONFLICT)
        except Conflict:
            pass  # it is given again
        else:
            if learns and request.verb == "cancel":
                self._cancelled(line, request.key, active)

    def _carried_out(self, host: ModelHost, request: Request) -> bool:
        """What the agent's door does with it."""
        host.accept_epoch(self.controller_epoch)
        if request.verb == "acknowledge":
            agent_id, up_to = request.key
            if agent_id == host.agent_id:
                assert up_to <= self.store.last_sequence.get(host.agent_id, 0), (
                    "acknowledged and not stored"
                )
                host.acknowledge(up_to)
            return True
        if request.verb == "start":
            return host.start(
                replace(self.store.nodes[request.key[0]].spec, attempt=request.key[1])
            )
        return host.cancel(request.key)

    def _cancelled(self, line: ModelConnection, key: Key, active: bool) -> None:
        attempt = next(
            known for known in self.store.nodes[key[0]].attempts if known.number == key[1]
        )
        if active:
            line.cancel_sent.add(key)
        elif attempt.phase is Phase.QUEUED:
            self._close(key, Outcome.CANCELLED, ErrorKind.NONE)

    def _close(self, key: Key, outcome: Outcome, kind: ErrorKind) -> None:
        attempt = next(
            known for known in self.store.nodes[key[0]].attempts if known.number == key[1]
        )
        if not attempt.is_over:
            self.store.save_attempt(
                self.epoch, key[0], replace(attempt, phase=Phase.OVER, outcome=outcome, kind=kind)
            )


def nodes_of(specs: Iterable[TrialSpec]) -> dict[str, Trial]:
    """A job of which nothing has begun."""
    return {spec.trial_id: Trial(spec) for spec in specs}
