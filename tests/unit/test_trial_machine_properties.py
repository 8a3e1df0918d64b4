"""Owns what holds for every order of events: each launched server stopped once, each trial closed
once, replay equals life.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.core.effects import (
    AbortLoad,
    AwaitReady,
    CloseTrial,
    CollectEvidence,
    Effect,
    LaunchServer,
    MeasureRun,
    ProveConfiguration,
    StopServer,
    WarmUp,
)
from fleet_agent.core.trial import AgentTrial, ServerState
from fleet_agent.core.trial_machine import accepts, new_trial, replay, step
from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.errors import ErrorKind
from fleet_protos.events import (
    AgentRestarted,
    Body,
    CancelRequested,
    ConfigurationProved,
    Event,
    EvidenceCollected,
    LoadFailed,
    RunFinished,
    ServerFailed,
    ServerLaunched,
    ServerLaunching,
    ServerProgressed,
    ServerReady,
    ServerStopped,
    TrialAccepted,
    TrialOver,
    WarmedUp,
)
from fleet_protos.search_rules import CONCURRENCY
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Measure,
    Outcome,
    Phase,
    RunResult,
    Search,
    Searched,
    TrialSpec,
    Workload,
    is_void,
)
from fleet_protos.workload_rules import load_of

WORKLOADS = (Workload(name="single", concurrency=1), Workload(name="busy", concurrency=8))
SPEC = TrialSpec(
    trial_id="t",
    engine=EngineSpec(kind=EngineKind.SIMULATED),
    workloads=WORKLOADS,
    measure=Measure(runs_min=1, runs_max=3, precision=0.01),
)
DIED = ServerFailed(ErrorKind.SERVER_EXITED, "exited", "gone")
VOIDED = (Gate("requests_failed", GateEffect.VOID_RUN, "3 failed"),)
ENDS: dict[type[Effect], list[Body]] = {
    AwaitReady: [ServerReady(1.0), DIED],
    ProveConfiguration: [
        ConfigurationProved(),
        ConfigurationProved(gates=(Gate("env_lost", GateEffect.VOID_TRIAL),)),
        DIED,
    ],
    CollectEvidence: [EvidenceCollected()],
    StopServer: [ServerStopped("term", 0.1), ServerStopped("kill", 9.0, ("pid 9",))],
}


@dataclass
class Shell:
    """A shell that may be slow, be overtaken and be killed, but breaks no promise: each order ends
    in one event, or with its agent.
    """

    draw: Any
    trial: AgentTrial
    in_flight: list[Effect] = field(default_factory=list)
    journal: list[Event] = field(default_factory=list)
    ordered: list[Effect] = field(default_factory=list)
    launched: int = 0
    stopped: int = 0
    closed: int = 0

    def receive(self, body: Body) -> None:
        at_ns = (len(self.journal) + 1) * 1_000_000_000
        if not accepts(self.trial, body):
            assert step(self.trial, body, at_ns / 1e9) == (self.trial, ())
            return
        self.trial, effects = step(self.trial, body, at_ns / 1e9)
        self.journal.append(Event(len(self.journal) + 1, at_ns, "t", 1, 0, self.trial.phase, body))
        self.launched += isinstance(body, ServerLaunched)
        self.stopped += isinstance(body, ServerStopped)
        self.closed += isinstance(body, TrialOver)
        for effect in effects:
            self.ordered.append(effect)
            if isinstance(effect, AbortLoad):
                assert any(isinstance(order, WarmUp | MeasureRun) for order in self.in_flight)
                if self.draw(
                    st.booleans()
                ):  # the load may still end by itself before it hears of it
                    self.in_flight = [
                        order
                        for order in self.in_flight
                        if not isinstance(order, WarmUp | MeasureRun)
                    ]
            else:
                self.in_flight.append(effect)

    def end_one(self) -> None:
        order = self.draw(st.sampled_from(self.in_flight))
        if (
            isinstance(order, LaunchServer)
            and self.trial.server is ServerState.ABSENT
            and self.draw(st.integers(0, 9)) < 9
        ):
            return self.receive(ServerLaunching("token", 4000, witness=order.witness))
        self.in_flight.remove(order)
        ends = self._ends(order)
        self.receive(
            self.draw(st.sampled_from(ends)) if self.draw(st.integers(0, 9)) == 9 else ends[0]
        )

    def _ends(self, order: Effect) -> list[Body]:
        if isinstance(order, LaunchServer):
            return (
                [ServerLaunched(5, 5, 7), DIED]
                if self.trial.server is ServerState.LAUNCHING
                else [DIED]
            )
        if isinstance(order, WarmUp):
            return [WarmedUp(order.workload.name, 8), LoadFailed(order.workload.name, "broke")]
        if isinstance(order, MeasureRun):
            runs: list[Body] = [
                self._run(order.workload, order.index, gates) for gates in ((), VOIDED)
            ]
            return [*runs, LoadFailed(order.workload.name, "broke")]
        if isinstance(order, CloseTrial):
            return [TrialOver(order.outcome, order.kind, order.failure_class, order.message)]
        return ENDS[type(order)]

    def _run(self, workload: Workload, index: int, gates: tuple[Gate, ...]) -> RunFinished:
        rate = self.draw(st.sampled_from([99.0, 100.0, 140.0]))
        searched = (
            Searched(load_of(workload), self.draw(st.booleans()), of=workload.search.of)
            if workload.search.of
            else Searched()
        )
        return RunFinished(
            RunResult(
                workload.name, index, metrics={"output_tok_s": rate}, gates=gates, searched=searched
            )
        )

    def disturb(self, what: str) -> None:
        if what == "cancel" and self.trial.phase is not Phase.QUEUED:
            self.receive(CancelRequested("enough"))
        elif what == "repeat" and self.trial.phase is not Phase.QUEUED:
            self.receive(TrialAccepted(self.trial.spec))
        elif what == "die" and self.trial.server in (
            ServerState.STARTING,
            ServerState.READY,
            ServerState.STOPPING,
        ):
            self.receive(DIED)
        elif what == "progress" and self.trial.phase is not Phase.QUEUED:
            self.receive(ServerProgressed("load_weight", 3, 9))
        elif what == "restart" and self.journal:
            self.in_flight.clear()
            assert replay(self.journal) == self.trial
            self.receive(AgentRestarted("back again"))


WITNESSED = replace(SPEC, witness=True)
SEARCHED = replace(
    SPEC,
    workloads=(Workload("users", search=Search(CONCURRENCY, 1.0, 16.0, 0.2, 0.99)), WORKLOADS[0]),
)


@st.composite
def lives(draw: Any, spec: TrialSpec = SPEC) -> Shell:
    """A trial brought to its end by a shell, disturbed up to six times."""
    shell = Shell(draw, new_trial(spec))
    shell.receive(TrialAccepted(spec))
    disturbance = st.tuples(
        st.integers(0, 25), st.sampled_from(["repeat", "cancel", "die", "progress", "restart"])
    )
    disturbances = draw(st.lists(disturbance, max_size=6))
    for turn in range(200):
        for _, what in (entry for entry in disturbances if entry[0] == turn):
            shell.disturb(what)
        if not shell.in_flight:
            return shell
        shell.end_one()
    raise AssertionError(f"no end: {shell.trial}")


def _lost(shell: Shell) -> int:
    """Servers whose start was journalled and whose process never was: none came to be, or the agent
    died between the two.
    """
    return sum(isinstance(event.body, ServerLaunching) for event in shell.journal) - shell.launched


@settings(max_examples=400, deadline=None)
@given(st.one_of(lives(), lives(WITNESSED), lives(SEARCHED)))
def test_every_life_ends_with_each_launched_server_stopped_and_the_trial_closed_once(
    shell: Shell,
) -> None:
    """A server whose start was ordered but not recorded when the agent died counts as launched: it
    is looked for by its token.
    """
    assert shell.trial.phase is Phase.OVER
    assert shell.closed == 1
    assert shell.launched <= shell.stopped <= shell.launched + _lost(shell)
    assert shell.ordered.count(LaunchServer(witness=True)) <= 1
    assert shell.ordered.count(LaunchServer()) <= 1
    assert shell.trial.outcome is not Outcome.UNSPECIFIED


@settings(max_examples=200, deadline=None)
@given(st.one_of(lives(), lives(WITNESSED), lives(SEARCHED)))
def test_without_a_restart_each_order_to_stop_and_to_close_is_given_once(shell: Shell) -> None:
    restarts = sum(isinstance(event.body, AgentRestarted) for event in shell.journal)
    closings = sum(isinstance(effect, CloseTrial) for effect in shell.ordered)
    assert closings <= 1 + restarts
    if not restarts:
        assert shell.ordered.count(StopServer()) == shell.launched
        assert closings == 1


@settings(max_examples=200, deadline=None)
@given(lives(WITNESSED))
def test_the_measured_server_is_launched_only_after_its_witness_is_proved_and_gone(
    shell: Shell,
) -> None:
    kinds = [event.body for event in shell.journal]
    measured = next(
        (
            place
            for place, body in enumerate(kinds)
            if isinstance(body, ServerLaunching) and not body.witness
        ),
        None,
    )
    if measured is not None:
        before = kinds[:measured]
        assert any(isinstance(body, ConfigurationProved) for body in before)
        assert any(isinstance(body, ServerStopped) and not body.left_over for body in before)
    else:
        assert not any(isinstance(body, WarmedUp | RunFinished) for body in kinds)
        assert shell.trial.outcome is not Outcome.OK


@settings(max_examples=200, deadline=None)
@given(st.one_of(lives(), lives(WITNESSED), lives(SEARCHED)), st.integers(1, 60))
def test_replay_of_any_journalled_beginning_gives_the_same_trial(shell: Shell, count: int) -> None:
    beginning = shell.journal[:count]
    kept = [event_from_json(event_to_json(event)) for event in beginning]
    trial = new_trial(shell.trial.spec)
    for event in beginning:
        assert event.body is not None
        trial, _ = step(trial, event.body, event.time_unix_ns / 1e9)
    assert replay(kept) == trial
    assert trial.phase is beginning[-1].phase


@settings(max_examples=100, deadline=None)
@given(lives(replace(SPEC, engine=EngineSpec(kind=EngineKind.EXTERNAL, url="http://x"))))
def test_an_external_server_is_never_started_or_stopped_whatever_happens(shell: Shell) -> None:
    assert not [effect for effect in shell.ordered if isinstance(effect, LaunchServer | StopServer)]
    assert (shell.trial.phase, shell.closed) == (Phase.OVER, 1)


@settings(max_examples=200, deadline=None)
@given(lives())
def test_an_ok_trial_measured_every_workload(shell: Shell) -> None:
    if shell.trial.outcome is Outcome.OK:
        valid = {
            event.body.run.workload
            for event in shell.journal
            if isinstance(event.body, RunFinished) and not is_void(event.body.run)
        }
        assert valid == {workload.name for workload in WORKLOADS}
