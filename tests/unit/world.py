"""Hosts of a world in memory: the real core of the agent, with a shell that dies, forgets, fills
its disk and goes dark when it is told to.

What a disk holds survives (the journal, the lease), what a process holds does not. Time is a
number. Every choice comes from one seed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from fleet_agent.core import effects as fx
from fleet_agent.core.admission.attempt_fencing import attempts_to_end
from fleet_agent.core.admission.controller_takeover import CurrentController, check_order
from fleet_agent.core.allocation import GpuPool, claim_gpus, release
from fleet_agent.core.trial import AgentTrial as AgentTrial
from fleet_agent.core.trial import ServerState
from fleet_agent.core.trial_machine import accepts, new_trial, replay, step
from fleet_protos import events as ev
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict, ErrorKind
from fleet_protos.trial_types import Gate, GateEffect, Outcome, Phase, RunResult, TrialSpec

Key = tuple[str, int]  # trial id, attempt
DIED = ev.ServerFailed(ErrorKind.SERVER_EXITED, "killed", "gone")


@dataclass
class Runner:
    """One trial of a running agent process: its machine, and the order that is being carried out."""

    trial: AgentTrial
    order: fx.Effect | None = None
    spawned: bool = False  # the server's process exists and is not on record yet
    unwritten: fx.CloseTrial | None = None  # the end of a trial whose journal took nothing


@dataclass
class Process:
    """What an agent process holds in memory."""

    runners: dict[Key, Runner] = field(default_factory=dict)
    pool: GpuPool = field(default_factory=lambda: GpuPool(tuple(range(8))))
    streams: int = 0
    quiet_since_s: float = 0.0


@dataclass
class ModelHost:
    """One machine. `journal`, `acknowledged` and `lease` lie on its disk; `servers` live until the
    power goes or somebody ends them.
    """

    name: str
    rng: random.Random
    agent_id: str = ""
    journal: list[ev.Event] = field(default_factory=list)
    dropped: int = 0  # events that compaction took away
    acknowledged: int = 0
    epoch: ControllerEpoch = field(default_factory=ControllerEpoch)
    servers: dict[Key, bool] = field(
        default_factory=dict
    )  # False: it died and nobody has looked yet
    process: Process | None = None
    linked: bool = True
    full: bool = False
    jammed: bool = False  # not even the end of a trial can be journalled
    ahead_s: float = 0.0
    now_s: float = 0.0
    launches: Counter[Key] = field(default_factory=Counter)
    finished: set[Key] = field(default_factory=set)  # whose events compaction took away

    @property
    def last_sequence(self) -> int:
        return self.dropped + len(self.journal)

    # Processes

    def boot(self) -> None:
        """The agent starts: what its journal holds unfinished is ended."""
        self.process = Process(quiet_since_s=self.now_s)
        histories: dict[Key, list[ev.Event]] = {}
        for event in self.journal:
            histories.setdefault((event.trial_id, event.attempt), []).append(event)
        for key, history in histories.items():
            if history[-1].phase is not Phase.OVER:
                self._run(replay(history), key, ev.AgentRestarted("the agent was restarted"))

    def kill(self) -> None:
        """The agent is gone; its servers live on."""
        self.process = None

    def power_off(self) -> None:
        """All processes are gone."""
        self.process = None
        self.servers.clear()

    def wipe(self, agent_id: str) -> None:
        """The disk was replaced."""
        self.power_off()
        self.journal, self.dropped, self.acknowledged, self.epoch, self.agent_id = (
            [],
            0,
            0,
            ControllerEpoch(),
            agent_id,
        )
        self.finished.clear()

    # Orders of a controller

    def accept_epoch(self, epoch: ControllerEpoch) -> None:
        assert self.process is not None
        owed = "events" if self.process.runners or self.acknowledged < self.last_sequence else ""
        away_s = self.now_s - self.process.quiet_since_s
        refused = check_order(
            CurrentController(self.epoch, self.process.streams > 0, owed, away_s), epoch
        )
        if refused is not None:
            raise Conflict(refused.message)
        self.epoch = epoch

    def start(self, spec: TrialSpec) -> bool:
        """As `Agent.start`."""
        process, key = self.process, (spec.trial_id, spec.attempt)
        assert process is not None
        if (
            key in process.runners
            or any((event.trial_id, event.attempt) == key for event in self.journal)
            or key in self._known
        ):
            return True
        active = [attempt for trial_id, attempt in process.runners if trial_id == spec.trial_id]
        known = [attempt for trial_id, attempt in self._known if trial_id == spec.trial_id]
        for attempt in (older := attempts_to_end(*key, active, max(known, default=0))):
            self.cancel((spec.trial_id, attempt))
        if older or self.full:
            raise Conflict("an older one ends, or the disk is full")
        process.pool, _ = claim_gpus(
            process.pool, f"{spec.trial_id}/{spec.attempt}", spec.engine.gpus
        )
        self._run(new_trial(spec), key, ev.TrialAccepted(spec))
        return False

    @property
    def _known(self) -> set[Key]:
        return {(event.trial_id, event.attempt) for event in self.journal} | self.finished

    def cancel(self, key: Key) -> bool:
        runner = self.process.runners.get(key) if self.process else None
        if runner is not None and runner.unwritten is None:
            self._feed(key, runner, ev.CancelRequested("asked"))
        return runner is not None

    def acknowledge(self, up_to: int) -> None:
        """And drop what nobody needs any more."""
        self.acknowledged = max(self.acknowledged, min(up_to, self.last_sequence))
        open_keys = set(self.process.runners) if self.process else set()
        first = next(
            (
                event.sequence
                for event in self.journal
                if (event.trial_id, event.attempt) in open_keys
            ),
            self.last_sequence + 1,
        )
        base = min(self.acknowledged, first - 1)
        if base > self.dropped and self.rng.random() < 0.3:
            gone, self.journal = (
                self.journal[: base - self.dropped],
                self.journal[base - self.dropped :],
            )
            self.finished |= {(event.trial_id, event.attempt) for event in gone}
            self.dropped = base

    # Trials

    def _run(self, trial: AgentTrial, key: Key, first: ev.Body) -> None:
        assert self.process is not None
        runner = self.process.runners[key] = Runner(trial)
        if isinstance(first, ev.AgentRestarted):
            self.process.pool, _ = claim_gpus(
                self.process.pool, f"{key[0]}/{key[1]}", trial.spec.engine.gpus
            )
        self._feed(key, runner, first)

    def _feed(self, key: Key, runner: Runner, body: ev.Body) -> None:
        """As `TrialRunner._advance`: step, journal, then what follows."""
        if not accepts(runner.trial, body):
            return
        runner.trial, orders = step(runner.trial, body, self.now_s)
        if self.jammed:
            self.servers.pop(key, None)
            runner.order, runner.unwritten = (
                None,
                fx.CloseTrial(Outcome.FAILED, ErrorKind.CONFLICT, "journal_failed", "full"),
            )
            return
        self._write(key, runner.trial.phase, body)
        for order in orders:
            if not isinstance(order, fx.AbortLoad):
                runner.order = order
        if runner.trial.phase is Phase.OVER:
            self._leave(key)

    def _write(self, key: Key, phase: Phase, body: ev.Body) -> None:
        at_ns = round((self.now_s + self.ahead_s) * 1e9)
        self.journal.append(ev.Event(self.last_sequence + 1, at_ns, *key, 0, phase, body))

    def _leave(self, key: Key) -> None:
        assert self.process is not None
        del self.process.runners[key]
        self.process.pool = release(self.process.pool, f"{key[0]}/{key[1]}")

    def work(self) -> bool:
        """One step of one trial; False when there is nothing to do."""
        if self.process is None or not self.process.runners:
            return False
        key = self.rng.choice(list(self.process.runners))
        runner = self.process.runners[key]
        if runner.unwritten is not None:
            return self._write_the_end(key, runner)
        dead = self.servers.get(key) is False and runner.trial.server in (
            ServerState.STARTING,
            ServerState.READY,
        )
        if dead and accepts(runner.trial, DIED):
            self._feed(key, runner, DIED)
            return True
        order = runner.order
        if order is None or (isinstance(order, fx.HoldServer) and self.now_s < order.deadline_s):
            return False
        self._carry_out(key, runner, order)
        return True

    def _write_the_end(self, key: Key, runner: Runner) -> bool:
        end = runner.unwritten
        if self.jammed or end is None:
            return False
        self._write(
            key, Phase.OVER, ev.TrialOver(end.outcome, end.kind, end.failure_class, end.message)
        )
        self._leave(key)
        return True

    def _carry_out(self, key: Key, runner: Runner, order: fx.Effect) -> None:
        if isinstance(order, fx.LaunchServer):
            self._launch(key, runner, order)
            return
        runner.order = None
        fails = self.rng.random() < 0.04
        self._feed(key, runner, self._end_of(key, order, fails))

    def _launch(self, key: Key, runner: Runner, order: fx.LaunchServer) -> None:
        if runner.trial.server is not ServerState.LAUNCHING:
            if self.rng.random() < 0.03:
                self._feed(
                    key, runner, ev.ServerFailed(ErrorKind.SERVER_LAUNCH, "launch_failed", "no")
                )
            else:
                self._feed(key, runner, ev.ServerLaunching("token", 4000, witness=order.witness))
        elif not runner.spawned:
            assert key not in self.servers, f"two servers of {key} on {self.name}"
            self.servers[key], runner.spawned = True, True
            self.launches[key] += 1
        else:
            runner.spawned, runner.order = False, None
            self._feed(key, runner, ev.ServerLaunched(5, 5, 7))

    def _end_of(self, key: Key, order: fx.Effect, fails: bool) -> ev.Body:
        """What an order ends in."""
        if isinstance(order, fx.MeasureRun):
            return self._measured(order, fails)
        if isinstance(order, fx.StopServer):
            self.servers.pop(key, None)
        voids = (
            (Gate("env_lost", GateEffect.VOID_TRIAL, "lost"),)
            if fails and self.rng.random() < 0.3
            else ()
        )
        name = order.workload.name if isinstance(order, fx.WarmUp) else ""
        closes = order if isinstance(order, fx.CloseTrial) else fx.CloseTrial(Outcome.OK)
        ends: dict[type, ev.Body] = {
            fx.StopServer: ev.ServerStopped("term", 0.1),
            fx.CollectEvidence: ev.EvidenceCollected(),
            fx.CloseTrial: ev.TrialOver(
                closes.outcome, closes.kind, closes.failure_class, closes.message
            ),
            fx.HoldServer: ev.ServerFailed(
                ErrorKind.SERVER_UNHEALTHY, "gang_hold_limit", "nobody came"
            ),
            fx.WarmUp: ev.LoadFailed(name, "broke") if fails else ev.WarmedUp(name, 1),
            fx.ProveConfiguration: ev.ConfigurationProved(gates=voids),
            fx.AwaitReady: DIED if fails else ev.ServerReady(1.0),
        }
        return ends[type(order)]

    def _measured(self, order: fx.MeasureRun, fails: bool) -> ev.Body:
        if fails or self.full:
            return ev.LoadFailed(order.workload.name, "no space left" if self.full else "broke")
        value = round(100 + self.rng.random(), 6)
        return ev.RunFinished(
            RunResult(order.workload.name, order.index, metrics={"output_tok_s": value})
        )
