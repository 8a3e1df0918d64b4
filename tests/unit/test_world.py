"""Random faults on a whole fleet in memory: each run is stored once, no server is left, the job
ends, and the newest attempt wins.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from fleet_controller.analysis.launches import counted_attempts
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.core.gang import member_specs
from fleet_controller.core.trial_state import job_state
from fleet_protos import events as ev
from fleet_protos.errors import Conflict
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gang,
    Measure,
    Outcome,
    Phase,
    TrialSpec,
    Workload,
)
from tests.unit.world import ModelHost
from tests.unit.world_controller import (
    GIVE_UP_S,
    ModelConnection,
    ModelController,
    ModelStore,
    Request,
    StoreFull,
    nodes_of,
)

SEEDS = 240
STEPS = 260
CALM_ROUNDS = 1500
HOSTS = ("a", "b", "c")
WORKLOADS = (Workload("single", 1), Workload("busy", 8))

# How often each thing happens, as weights; the last ones are faults.
ORDINARY = {
    "work": 40,
    "hear": 30,
    "tick": 8,
    "connect": 8,
    "order": 10,
    "deliver": 14,
    "acknowledge": 4,
    "time": 4,
    "look": 3,
}
FAULTS = {
    "kill_agent": 1.0, "boot": 2.5, "power_off": 0.5, "wipe": 0.3, "cut": 1.2, "heal": 2.5, "kill_server": 1.0, "fill": 0.6, "free": 1.5,
    "jam": 0.2, "kill_controller": 0.6, "store_full": 0.4, "store_free": 1.2, "clock": 0.6, "long_absence": 0.15, "cancel": 0.03,
    "twice": 2.0, "old_controller": 1.0, "line_breaks": 1.0,
}  # fmt: skip


def specs(gang: bool) -> list[TrialSpec]:
    """Four trials on three hosts, or two on two of them at a time."""
    measure = Measure(runs_min=2, runs_max=3, precision=0.5)
    found: list[TrialSpec] = []
    for number, host in enumerate(HOSTS if gang else (*HOSTS, "a")):
        engine = EngineSpec(
            EngineKind.SIMULATED, gpus=8, gang=Gang(2, 0, hold_limit_s=900.0) if gang else Gang()
        )
        place = TrialSpec(f"job-b1-v{number}", 1, "job", variant=f"v{number}", block=1, host=host)
        lead = replace(
            place, engine=engine, workloads=WORKLOADS, measure=measure, witness=number == 1
        )
        found += [lead, *(member_specs(lead, [HOSTS[(number + 1) % 3]]) if gang else ())]
    return found


@dataclass
class World:
    """Everything, and one seed."""

    rng: random.Random
    hosts: dict[str, ModelHost] = field(default_factory=dict)
    store: ModelStore = field(default_factory=lambda: ModelStore({}))
    now_s: float = 1000.0
    wire: list[Request] = field(default_factory=list)
    said: list[Request] = field(default_factory=list)
    past: list[ModelController] = field(
        default_factory=list
    )  # processes that were replaced and may still wake up
    wiped: int = 0
    told: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, seed: int) -> World:
        rng = random.Random(seed)
        world = cls(
            rng, {name: ModelHost(name, rng, f"agent-{name}", now_s=1000.0) for name in HOSTS}
        )
        world.store = ModelStore(nodes_of(specs(gang=seed % 3 == 2)))
        for host in world.hosts.values():
            host.boot()
        world.controller = ModelController(world.store, world.hosts.values(), world.now_s)
        return world

    controller: ModelController = None  # type: ignore[assignment] # made by `of`

    # One step

    def step(self, weights: dict[str, float]) -> None:
        (what,) = self.rng.choices(list(weights), list(weights.values()))
        self.told[what] += 1
        try:
            getattr(self, f"_{what}")()
        except (
            StoreFull,
            Conflict,
        ):  # as the shell: the line is made anew, the decision taken again
            for line in self.controller.connections.values():
                if what == "hear":
                    self.controller.disconnect(line)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.controller.now_s = self.now_s
        for host in self.hosts.values():
            host.now_s = self.now_s

    @property
    def _host(self) -> ModelHost:
        return self.rng.choice(list(self.hosts.values()))

    @property
    def _line(self) -> ModelConnection:
        return self.rng.choice(list(self.controller.connections.values()))

    def _work(self) -> None:
        self._host.work()

    def _hear(self) -> None:
        self.controller.read_event(self._line)

    def _tick(self) -> None:
        self.controller.tick()

    def _connect(self) -> None:
        self.controller.connect(self._line)

    def _order(self) -> None:
        orders = list(self.controller.order(self._line))
        self.wire += orders
        self.said += orders

    def _deliver(self) -> None:
        if self.wire:
            request = self.wire.pop(self.rng.randrange(len(self.wire)))
            host, is_replaced = request.host, request.sender.epoch < request.host.epoch.epoch
            before = self._state_of(host)
            request.sender.answer(request, self.rng)
            assert not is_replaced or before == self._state_of(host), (
                "a controller that was replaced was obeyed"
            )

    def _state_of(self, host: ModelHost) -> tuple[int, int, int]:
        return (
            host.last_sequence,
            host.acknowledged,
            len(host.process.runners) if host.process else 0,
        )

    def _acknowledge(self) -> None:
        line = self._line
        if line.connected:
            self.wire.append(
                Request(self.controller, line.host, "acknowledge", (line.agent_id, line.stored))
            )

    def _look(self) -> None:
        line = self._line
        if line.connected and line.host.linked and line.process is line.host.process:
            self.controller.reconcile(line)

    def _time(self) -> None:
        self.pass_time(self.rng.choice([0.1, 1.0, 5.0]))

    # Faults

    def _kill_agent(self) -> None:
        self._host.kill()

    def _boot(self) -> None:
        host = self._host
        if host.process is None and not host.jammed:
            host.boot()

    def _power_off(self) -> None:
        self._host.power_off()

    def _wipe(self) -> None:
        self.wiped += 1
        self._host.wipe(f"agent-new-{self.wiped}")

    def _cut(self) -> None:
        self._host.linked = False

    def _heal(self) -> None:
        self._host.linked = True

    def _line_breaks(self) -> None:
        self.controller.disconnect(self._line)

    def _kill_server(self) -> None:
        host = self._host
        for key in host.servers:
            host.servers[key] = False

    def _fill(self) -> None:
        self._host.full = True

    def _jam(self) -> None:
        host = self._host
        host.full = host.jammed = True

    def _free(self) -> None:
        host = self._host
        host.full = host.jammed = False

    def _clock(self) -> None:
        self._host.ahead_s = self.rng.choice([-86_400.0, -3.0, 0.0, 3.0, 86_400.0])

    def _store_full(self) -> None:
        self.store.full = True

    def _store_free(self) -> None:
        self.store.full = False

    def _kill_controller(self) -> None:
        self.controller.die()
        self.past.append(self.controller)
        self.controller = ModelController(self.store, self.hosts.values(), self.now_s)

    def _long_absence(self) -> None:
        self.pass_time(GIVE_UP_S + 1)

    def _cancel(self) -> None:
        self.store.require_epoch(self.controller.epoch)
        self.store.cancelled = True

    def _twice(self) -> None:
        """Something that was said before arrives once more, however long ago that was."""
        if self.said:
            self.wire.append(self.rng.choice(self.said))

    def _old_controller(self) -> None:
        """A controller that was replaced wakes up and says again what it may have said."""
        if self.past:
            node = self.rng.choice(list(self.store.nodes.values()))
            verb = self.rng.choice(["start", "cancel"])
            for attempt in node.attempts[-1:]:
                sender = self.rng.choice(self.past)
                self.wire.append(
                    Request(
                        sender,
                        self.hosts[node.spec.host],
                        verb,
                        (node.spec.trial_id, attempt.number),
                    )
                )

    # Afterwards

    def calm(self) -> None:
        """No more faults: whatever can go on goes on."""
        for host in self.hosts.values():
            host.linked, host.full, host.jammed = True, False, False
            if host.process is None:
                host.boot()
        self.store.full = False
        for _ in range(CALM_ROUNDS):
            for what in (
                "connect",
                "hear",
                "tick",
                "order",
                "deliver",
                "deliver",
                "acknowledge",
                "look",
            ) * 3:
                self.step({what: 1})
            self._work_all()
            self.pass_time(1.0)
            if self.is_quiet:
                return
        raise AssertionError(
            f"no end: {[(node.spec.trial_id, node.newest) for node in self.store.nodes.values() if node.is_active]}"
        )

    def _work_all(self) -> None:
        for host in self.hosts.values():
            while host.work():
                self._check_now()

    @property
    def is_quiet(self) -> bool:
        lines = self.controller.connections.values()
        heard = all(line.connected and line.stored == line.host.last_sequence for line in lines)
        idle = all(
            host.process is not None and not host.process.runners for host in self.hosts.values()
        )
        return (
            heard
            and idle
            and self.store.is_over
            and all(request.verb == "acknowledge" for request in self.wire)
        )

    # What must hold

    def _check_now(self) -> None:
        for host in self.hosts.values():
            if host.process is not None:
                assert len(host.process.runners) <= 1, (
                    f"two trials at once on {host.name}: they share its GPUs"
                )

    def check(self) -> None:
        for host in self.hosts.values():
            assert not host.servers, f"left over on {host.name}: {host.servers}"
            self._check_journal(host)
        self._check_attempts()

    def _check_journal(self, host: ModelHost) -> None:
        """Everything that the journal ever held is stored, once, and each trial in it ended once."""
        stored = [
            event for (agent_id, _), event in self.store.events.items() if agent_id == host.agent_id
        ]
        ours = [
            event
            for event in host.journal
            if (event.trial_id, event.attempt, host.agent_id) not in self.store.foreign
        ]
        assert [event for event in stored if event.sequence > host.dropped] == ours
        assert self.store.last_sequence.get(host.agent_id, 0) == host.last_sequence
        ends = Counter(
            (event.trial_id, event.attempt)
            for event in stored
            if isinstance(event.body, ev.TrialOver)
        )
        begun = {(event.trial_id, event.attempt) for event in stored}
        assert ends == dict.fromkeys(begun, 1)
        accepted = [
            (event.trial_id, event.attempt)
            for event in stored
            if isinstance(event.body, ev.TrialAccepted)
        ]
        for trial_id in {trial_id for trial_id, _ in accepted}:
            attempts = [attempt for name, attempt in accepted if name == trial_id]
            assert attempts == sorted(set(attempts)), "an older attempt began after a newer one"
        runs = [event for event in stored if isinstance(event.body, ev.RunFinished)]
        for event in runs:
            assert isinstance(event.body, ev.RunFinished)
            run = event.body.run
            assert self.store.runs[event.trial_id, event.attempt, run.workload, run.index] == run

    def _check_attempts(self) -> None:
        outcomes = {
            (node.spec.trial_id, known.number): known.outcome
            for node in self.store.nodes.values()
            for known in node.attempts
        }
        kept = self.store.runs.items()
        runs = [
            StoredRun(trial, attempt, trial_outcome=outcomes[trial, attempt], run=run)
            for (trial, attempt, *_), run in kept
        ]
        newest = {trial.spec.trial_id: trial for trial in self.store.trials()}
        for node in self.store.nodes.values():
            assert [attempt.number for attempt in node.attempts] == list(
                range(1, len(node.attempts) + 1)
            )
            assert all(attempt.phase is Phase.OVER for attempt in node.attempts)
        for trial in newest.values():
            assert all(attempt.outcome is not Outcome.OK for attempt in trial.attempts[:-1]), (
                "measured again though it had been measured"
            )
        for stored in counted_attempts(runs):
            trial = newest[stored.trial_id]
            assert trial.newest is not None
            assert trial.newest.number == stored.attempt, "an older attempt counts"
        assert job_state(self.store.trials(), self.store.cancelled) in (
            "done",
            "failed",
            "cancelled",
        )


def run(seed: int, steps: int = STEPS) -> World:
    world = World.of(seed)
    weights = {**ORDINARY, **FAULTS}
    for _ in range(steps):
        world.step(weights)
        world._check_now()
    world.calm()
    world.check()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_whatever_happens_each_run_is_stored_once_no_server_is_left_and_the_job_ends(
    first: int,
) -> None:
    for seed in range(first, first + 20):
        try:
            run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_without_faults_every_trial_is_measured_at_its_first_attempt_or_tried_again() -> None:
    for seed in range(12):
        world = World.of(seed)
        world.calm()
        world.check()
        assert all(len(trial.attempts) >= 1 for trial in world.store.trials())
        assert not world.store.cancelled
