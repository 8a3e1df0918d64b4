"""Owns the promises of the trial machine: every move of the grid, the whole ways through, and what
each end says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

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
from fleet_agent.core.trial import AgentTrial, MeasurePosition, ServerState, WantedState
from fleet_agent.core.trial_machine import (
    TERMINAL,
    InvalidTransition,
    accepts,
    new_trial,
    replay,
    step,
)
from fleet_protos.errors import Bug, ErrorKind
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
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Measure,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
    Workload,
)

ONE, TWO = Workload(name="single", concurrency=1), Workload(name="busy", concurrency=8)
ENGINE = EngineSpec(kind=EngineKind.SIMULATED, ready_timeout_s=60)
SPEC = TrialSpec(
    trial_id="t",
    engine=ENGINE,
    workloads=(ONE, TWO),
    measure=Measure(runs_min=2, runs_max=3, precision=0.02),
)
EXTERNAL = replace(
    SPEC, engine=EngineSpec(kind=EngineKind.EXTERNAL, url="http://x", ready_timeout_s=5)
)
DIED = ServerFailed(ErrorKind.SERVER_OOM, "cuda_oom", "out of memory", -9)
LAUNCH: tuple[Body, ...] = (
    TrialAccepted(SPEC),
    ServerLaunching("token", 4000),
    ServerLaunched(12, 12, 99),
    ServerReady(1.0),
)
PROVED = ConfigurationProved()


def run(workload: Workload, index: int, rate: float = 100.0, *gates: Gate) -> RunFinished:
    return RunFinished(
        RunResult(workload=workload.name, index=index, metrics={"output_tok_s": rate}, gates=gates)
    )


def void(workload: Workload, index: int) -> RunFinished:
    return run(
        workload, index, 100.0, Gate("short_output", GateEffect.VOID_RUN, "half of the tokens")
    )


def follow(
    bodies: Sequence[Body], trial: AgentTrial | None = None
) -> tuple[AgentTrial, list[Effect]]:
    trial = trial or new_trial(SPEC)
    effects: list[Effect] = []
    for at_s, body in enumerate(bodies):
        assert accepts(trial, body), f"{body} is late in {trial.phase}"
        trial, ordered = step(trial, body, float(at_s))
        effects.extend(ordered)
    return trial, effects


WHOLE: tuple[Body, ...] = (
    *LAUNCH, PROVED, WarmedUp("single"), run(ONE, 1), run(ONE, 2), WarmedUp("busy"), run(TWO, 1), run(TWO, 2), EvidenceCollected(),
    ServerStopped("term", 0.1), TrialOver(Outcome.OK),
)  # fmt: skip

# One trial in each place, by how many events of the whole way have passed.
PLACES = {
    "queued": 0, "launching": 1, "launching, process ordered": 2, "launching, not ready": 3, "launching, not proved": 4, "warming": 5,
    "measuring": 6, "measuring, warming the second": 8, "collecting": 11, "stopping": 12, "stopping, closing": 13, "over": 14,
}  # fmt: skip

# m: moves. l: late, a no-op. x: impossible. Events in the order of `BODIES`.
BODIES: tuple[Body, ...] = (
    TrialAccepted(SPEC), ServerLaunching("token", 4000), ServerLaunched(12, 12, 99), ServerProgressed("load_weight", 3, 9),
    ServerReady(1.0), PROVED, WarmedUp("single"), run(ONE, 1), LoadFailed("single", "no ray"), DIED, CancelRequested("enough"),
    EvidenceCollected(), ServerStopped(), AgentRestarted(), TrialOver(Outcome.OK),
)  # fmt: skip
GRID = {
    # accepted launching launched progressed ready proved warmed run load-failed died cancel
    # evidence stopped restarted over
    "queued":                        "m x x x x x x x x x m x x m x",
    "launching":                     "l m x l x x x x x m m x x m x",
    "launching, process ordered":    "l x m l x x x x x m m x x m x",
    "launching, not ready":          "l x x m m x x x x m m x x m x",
    "launching, not proved":         "l x x l l m x x x m m x x m x",
    "warming":                       "l x x l l l m x m m m x x m x",
    "measuring":                     "l x x l l l l m m m m x x m x",
    "measuring, warming the second": "l x x l l l l l l m m x x m x",
    "collecting":                    "l x x l l l l l l m m m x m x",
    "stopping":                      "l x x l l l l l l l l l m m x",
    "stopping, closing":             "l x x l l l l l l l l l l m m",
    "over":                          "l x x l l l l l l l l l l l l",
}  # fmt: skip
CASES = [
    (place, body, move)
    for place, row in GRID.items()
    for body, move in zip(BODIES, row.split(), strict=True)
]


def test_the_grid_covers_every_phase_and_every_event() -> None:
    phases = {follow(WHOLE[:count])[0].phase for count in PLACES.values()}
    assert phases == set(Phase) - {Phase.UNSPECIFIED}
    assert {type(body) for body in BODIES} == set(get_args(Body))
    assert len(BODIES) == len(get_args(Body))


@pytest.mark.parametrize(
    ("place", "body", "move"),
    CASES,
    ids=[f"{place}-{type(body).__name__}" for place, body, _ in CASES],
)
def test_each_event_moves_is_late_or_is_impossible(place: str, body: Body, move: str) -> None:
    trial, _ = follow(WHOLE[: PLACES[place]])
    if move == "x":
        with pytest.raises(InvalidTransition):
            accepts(trial, body)
        with pytest.raises(InvalidTransition):
            step(trial, body, 50.0)
    elif move == "l":
        assert not accepts(trial, body)
        assert step(trial, body, 50.0) == (trial, ())
    else:
        assert accepts(trial, body)
        assert step(trial, body, 50.0)[0] != trial


def test_the_whole_way_gives_its_orders_one_after_the_other() -> None:
    trial, effects = follow(WHOLE)
    assert effects == [
        LaunchServer(), AwaitReady(62.0), ProveConfiguration(), WarmUp(ONE), MeasureRun(ONE, 1), MeasureRun(ONE, 2), WarmUp(TWO),
        MeasureRun(TWO, 1), MeasureRun(TWO, 2), CollectEvidence(), StopServer(), CloseTrial(Outcome.OK),
    ]  # fmt: skip
    assert (trial.phase, trial.outcome, trial.server, trial.wanted) == (
        Phase.OVER,
        Outcome.OK,
        ServerState.GONE,
        WantedState.RUN,
    )
    assert trial.phase in TERMINAL


def test_a_trial_has_no_outcome_before_it_is_over() -> None:
    trial, _ = follow(WHOLE[:-1])
    assert trial.ending == CloseTrial(Outcome.OK)
    assert trial.outcome is Outcome.UNSPECIFIED


def test_an_external_server_is_measured_and_neither_started_nor_stopped() -> None:
    whole = [
        TrialAccepted(EXTERNAL),
        *(body for body in WHOLE[3:] if not isinstance(body, ServerStopped)),
    ]
    trial, effects = follow(whole, new_trial(EXTERNAL))
    assert effects[0] == AwaitReady(5.0)
    assert not [effect for effect in effects if isinstance(effect, LaunchServer | StopServer)]
    assert (trial.outcome, trial.server) == (Outcome.OK, ServerState.ABSENT)


def test_an_external_server_that_fails_ends_the_trial_without_a_stop() -> None:
    _, effects = follow([TrialAccepted(EXTERNAL), DIED, EvidenceCollected()], new_trial(EXTERNAL))
    assert [type(effect) for effect in effects] == [AwaitReady, CollectEvidence, CloseTrial]


@pytest.mark.parametrize("count", range(3, 11))
def test_dead_server_fails_the_trial_it_was_serving(count: int) -> None:
    before, _ = follow(WHOLE[:count])
    trial, effects = follow(
        [
            DIED,
            EvidenceCollected(),
            ServerStopped("none"),
        ],
        before,
    )
    loading = isinstance(before.awaited, WarmUp | MeasureRun)
    assert [type(effect) for effect in effects] == [
        *([AbortLoad] if loading else []),
        CollectEvidence,
        StopServer,
        CloseTrial,
    ]
    assert trial.ending is not None
    assert (trial.ending.outcome, trial.ending.kind, trial.ending.failure_class) == (
        Outcome.FAILED,
        ErrorKind.SERVER_OOM,
        "cuda_oom",
    )


def test_a_server_that_never_came_to_be_is_not_stopped() -> None:
    _, effects = follow(
        [
            *LAUNCH[:2],
            ServerFailed(ErrorKind.SERVER_LAUNCH, "exec_failed", "no such file"),
            EvidenceCollected(),
        ]
    )
    assert [type(effect) for effect in effects] == [LaunchServer, CollectEvidence, CloseTrial]


def test_the_end_of_a_failed_trial_says_phase_workload_and_run() -> None:
    trial, _ = follow([*WHOLE[:7], DIED])
    assert trial.ending is not None
    assert trial.ending.message == "measuring, workload single, run 2: out of memory"


def test_a_dead_server_is_the_cause_even_when_the_load_noticed_first() -> None:
    first, _ = follow([*WHOLE[:6], LoadFailed("single", "connection refused"), DIED])
    assert first.ending is not None
    assert first.ending.kind is ErrorKind.SERVER_OOM
    then, _ = follow([*WHOLE[:6], DIED])
    assert not accepts(then, LoadFailed("single", "connection refused"))


def test_only_the_first_report_of_a_death_counts() -> None:
    trial, _ = follow([*WHOLE[:6], DIED])
    assert not accepts(trial, ServerFailed(ErrorKind.SERVER_EXITED, "exited", "exit code 137"))


def test_load_that_broke_is_never_reported_as_a_bad_server() -> None:
    trial, effects = follow(
        [
            *WHOLE[:6],
            LoadFailed("single", "ray task lost"),
            EvidenceCollected(),
            ServerStopped("term"),
        ]
    )
    assert trial.ending is not None
    assert (trial.ending.kind, trial.ending.failure_class) == (ErrorKind.LOAD_FAILED, "load_failed")
    assert AbortLoad() not in effects


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8])
def test_a_cancelled_trial_aborts_its_load_and_stops_its_server(count: int) -> None:
    before, _ = follow(WHOLE[:count])
    trial, effects = follow([CancelRequested("enough")], before)
    loading = isinstance(before.awaited, WarmUp | MeasureRun)
    assert effects == [*([AbortLoad()] if loading else []), StopServer()]
    assert trial.ending is not None
    assert (trial.ending.outcome, trial.wanted) == (Outcome.CANCELLED, WantedState.STOP)


def test_a_trial_cancelled_while_its_process_comes_to_be_waits_for_it_and_stops_it() -> None:
    trial, effects = follow([*LAUNCH[:2], CancelRequested()])
    assert effects == [LaunchServer()]
    assert follow([LAUNCH[2]], trial)[1] == [StopServer()]
    failed, closing = follow([ServerFailed(ErrorKind.SERVER_LAUNCH)], trial)
    assert [type(effect) for effect in closing] == [CloseTrial]
    assert failed.ending is not None
    assert failed.ending.outcome is Outcome.CANCELLED


def test_a_trial_cancelled_before_it_was_accepted_is_closed_at_once() -> None:
    trial, effects = follow([CancelRequested("enough")])
    assert effects == [CloseTrial(Outcome.CANCELLED, message="queued: enough")]
    assert follow([TrialOver(Outcome.CANCELLED)], trial)[0].outcome is Outcome.CANCELLED


def test_a_failed_trial_that_is_cancelled_while_it_ends_stays_failed() -> None:
    trial, _ = follow([*WHOLE[:6], DIED, CancelRequested()])
    assert trial.ending is not None
    assert trial.ending.kind is ErrorKind.SERVER_OOM


@pytest.mark.parametrize("count", range(2, 11))
def test_a_restarted_agent_stops_the_server_and_fails_the_trial(count: int) -> None:
    trial, _ = follow(WHOLE[:count])
    trial, effects = follow([AgentRestarted()], trial)
    assert effects == [StopServer()]
    assert trial.ending is not None
    assert (trial.ending.outcome, trial.ending.kind) == (Outcome.FAILED, ErrorKind.AGENT_RESTARTED)


def test_a_restarted_agent_keeps_what_was_measured_to_the_end() -> None:
    for count, rest in ((11, [StopServer()]), (12, [StopServer()]), (13, [CloseTrial(Outcome.OK)])):
        trial, _ = follow(WHOLE[:count])
        assert follow([AgentRestarted()], trial)[1] == rest


def test_left_over_processes_fail_the_trial_and_are_named() -> None:
    trial, effects = follow([*WHOLE[:12], ServerStopped("kill", 30.0, ("pid 77 (sglang::sched)",))])
    close = effects[-1]
    assert isinstance(close, CloseTrial)
    assert (close.outcome, close.kind, close.failure_class) == (
        Outcome.FAILED,
        ErrorKind.SERVER_UNHEALTHY,
        "left_over_processes",
    )
    assert "pid 77 (sglang::sched)" in close.message
    assert trial.server is ServerState.GONE


def test_a_gate_that_voids_the_trial_ends_it_before_any_load() -> None:
    gate = Gate("env_lost", GateEffect.VOID_TRIAL, "NCCL_ALGO did not reach the server")
    trial, effects = follow(
        [*LAUNCH, ConfigurationProved(gates=(gate,)), EvidenceCollected(), ServerStopped("term")]
    )
    assert not [effect for effect in effects if isinstance(effect, WarmUp | MeasureRun)]
    assert trial.ending == CloseTrial(
        Outcome.FAILED,
        ErrorKind.GATE_VOIDED,
        "env_lost",
        "launching: NCCL_ALGO did not reach the server",
    )


def test_a_gate_that_only_flags_changes_nothing() -> None:
    trial, effects = follow([*LAUNCH, ConfigurationProved(gates=(Gate("x", GateEffect.FLAG),))])
    assert (trial.phase, effects[-1]) == (Phase.WARMING, WarmUp(ONE))


def test_void_runs_are_repeated_and_do_not_count() -> None:
    trial, effects = follow(
        [*WHOLE[:6], void(ONE, 1), run(ONE, 2, 101.0), void(ONE, 3), void(ONE, 4)]
    )
    assert trial.position == MeasurePosition(0, runs=4, values=(101.0,), void_in_row=2)
    assert effects[-1] == MeasureRun(ONE, 5)


def test_three_void_runs_in_a_row_end_the_trial() -> None:
    trial, effects = follow([*WHOLE[:6], run(ONE, 1), void(ONE, 2), void(ONE, 3), void(ONE, 4)])
    assert effects[-1] == CollectEvidence()
    assert trial.ending is not None
    assert (trial.ending.kind, trial.ending.failure_class) == (
        ErrorKind.GATE_VOIDED,
        "short_output",
    )
    assert trial.ending.message == (
        "measuring, workload single, run 4: 3 void runs in a row, the last by short_output: half of the tokens"
    )


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_without_a_usable_rate_never_becomes_a_number(rate: float) -> None:
    trial, _ = follow([*WHOLE[:6], run(ONE, 1, rate)])
    assert (trial.position.values, trial.position.void_in_row) == ((), 1)


def test_a_noisy_workload_ends_at_the_most_runs() -> None:
    trial, effects = follow([*WHOLE[:6], run(ONE, 1, 50.0), run(ONE, 2, 150.0), run(ONE, 3, 90.0)])
    assert effects[-1] == WarmUp(TWO)
    assert trial.phase is Phase.MEASURING


def test_the_load_of_an_order_not_yet_given_is_impossible() -> None:
    trial, _ = follow(WHOLE[:6])
    for body in (
        run(ONE, 2),
        run(TWO, 1),
        run(Workload(name="nobody"), 1),
        WarmedUp("busy"),
        LoadFailed("busy"),
    ):
        with pytest.raises(InvalidTransition):
            accepts(trial, body)


def test_an_impossible_move_tells_the_last_events() -> None:
    trial, _ = follow(WHOLE[:6])
    with pytest.raises(
        InvalidTransition,
        match=r"ServerStopped is impossible in phase MEASURING.*awaits MeasureRun.*ServerReady→LAUNCHING",
    ) as told:
        step(trial, ServerStopped(), 9.0)
    assert [entry.kind for entry in told.value.recent][-2:] == ["ConfigurationProved", "WarmedUp"]
    assert isinstance(told.value, Bug)


def test_a_trial_without_workloads_is_launched_proved_and_stopped() -> None:
    spec = replace(SPEC, workloads=())
    _, effects = follow(
        [TrialAccepted(spec), *LAUNCH[1:], PROVED, EvidenceCollected(), ServerStopped()],
        new_trial(spec),
    )
    assert [type(effect) for effect in effects[2:]] == [
        ProveConfiguration,
        CollectEvidence,
        StopServer,
        CloseTrial,
    ]


def test_replay_passes_over_kinds_of_a_later_version() -> None:
    events = [
        Event(sequence=1, body=WHOLE[0]),
        Event(sequence=2, body=None),
        Event(sequence=3, body=WHOLE[1]),
    ]
    assert replay(events).server is ServerState.LAUNCHING


@pytest.mark.parametrize(
    "events", [[], [Event(trial_id="t", body=ServerReady())]], ids=["nothing", "no beginning"]
)
def test_replay_of_a_journal_without_a_beginning_is_told(events: list[Event]) -> None:
    with pytest.raises(Bug):
        replay(events)
