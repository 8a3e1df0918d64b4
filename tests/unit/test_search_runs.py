"""Promises of the way of a search through the agent: which runs it orders, what each asks of the
load, what the journal brings back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from fleet_agent.core.admission.spec_validation import find_spec_faults
from fleet_agent.core.effects import CollectEvidence, MeasureRun, WarmUp
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.core.trial import AgentTrial
from fleet_agent.core.trial_machine import new_trial, replay, step
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.load.messages import LoadRequest, read_request, request_line
from fleet_agent.load.results.load_reply import LoadReply, ParquetFile
from fleet_agent.load.workload.arrivals import send_offsets_s
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_protos import events as ev
from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Measure,
    Outcome,
    RunResult,
    Search,
    Slo,
    TrialSpec,
    Workload,
    is_void,
)
from fleet_protos.workload_rules import at_load
from tests.unit.test_warm_up_runs import FACTS

RATES = Workload(
    "open", arrivals="poisson", duration_s=60.0, output_tokens=9, slo=Slo(2.0), search=Search(RATE, 1.0, 64.0, 0.05, 0.99)
)  # fmt: skip
USERS = Workload(
    "users", output_tokens=9, slo=Slo(2.0), search=Search(CONCURRENCY, 1.0, 64.0, 0.05, 0.99)
)
AFTER = Workload("after", concurrency=2, output_tokens=9)


def load_of(workload: Workload) -> float:
    return workload.rate_per_s or workload.concurrency


class Capable:
    """A load on a server that meets its SLO up to `limit`; `facts` changes what a run shows of
    itself.
    """

    def __init__(
        self,
        limit: float,
        facts: Callable[[Workload], RunFacts] = lambda workload: FACTS,
        *,
        flushed: bool = True,
    ) -> None:
        self.limit = limit
        self.facts = facts
        self.flushed = flushed
        self.asked: list[LoadRequest] = []

    async def run(self, request: LoadRequest) -> LoadReply:
        self.asked.append(request)
        raw = Path(request.parquet)
        raw.write_bytes(b"rows")  # noqa: ASYNC240 - nothing else runs here
        metrics = {
            "output_tok_s": 50.0,
            "goodput_ratio": 1.0 if load_of(request.workload) <= self.limit else 0.3,
        }
        facts = replace(
            self.facts(request.workload), achieved_concurrency=float(request.workload.concurrency)
        )
        return LoadReply(
            metrics=metrics, facts=asdict(facts), requests_ok=facts.requests_ok, requests_failed=facts.requests_failed,
            parquet=ParquetFile(str(raw), "ab", 4), cache_flushed=self.flushed,
        )  # fmt: skip


async def searched(
    load: Capable,
    folder: Path,
    workloads: tuple[Workload, ...] = (RATES,),
    kind: EngineKind = EngineKind.EXTERNAL,
) -> tuple[list[ev.Event], AgentTrial, list[str]]:
    """(events as journalled, the trial, what was ordered) of a trial that is measured until nothing
    is to be measured any more.
    """
    spec = TrialSpec(
        "t",
        engine=EngineSpec(kind, url="http://x"),
        workloads=workloads,
        measure=Measure(runs_min=1, runs_max=1),
    )
    place = folder / "t" / "1"
    place.mkdir(parents=True)
    errands = EffectHandlers(
        spec, TrialTools(Supervisor(), cast(LoadProcess, load), Ports(), ENGINES), (), place
    )
    trial = new_trial(replace(spec, engine=replace(spec.engine, kind=EngineKind.EXTERNAL)))
    events: list[ev.Event] = []
    ordered: list[str] = []
    bodies: list[ev.Body] = [
        ev.TrialAccepted(trial.spec),
        ev.ServerReady(1.0),
        ev.ConfigurationProved(),
    ]
    while bodies:
        trial, _ = step(trial, bodies[0], 1.0)
        events.append(ev.Event(len(events) + 1, 10**9, "t", 1, 0, trial.phase, bodies.pop(0)))
        if bodies:
            continue
        if isinstance(trial.awaited, WarmUp):
            ordered.append(
                f"warm {trial.awaited.workload.name}@{load_of(trial.awaited.workload):g}"
            )
            bodies.append(ev.WarmedUp(trial.awaited.workload.name))
        elif isinstance(trial.awaited, MeasureRun):
            ordered.append(f"{trial.awaited.workload.name}@{load_of(trial.awaited.workload):g}")
            bodies.append(
                await errands.measure(
                    trial.awaited.workload, trial.awaited.index, trial.awaited.search_runs
                )
            )
    return events, trial, ordered


def runs_of(events: list[ev.Event]) -> list[RunResult]:
    return [event.body.run for event in events if isinstance(event.body, ev.RunFinished)]


async def test_each_run_has_the_next_load_and_the_workload_after_it_follows(tmp_path: Path) -> None:
    events, trial, ordered = await searched(Capable(5), tmp_path, (USERS, AFTER))
    assert ordered[:10] == [
        "warm users@1",
        *(f"users@{load}" for load in (1, 2, 4, 8, 8, 6, 6, 5, 5)),
    ]
    assert ordered[10:] == ["warm after@2", "after@2"]
    assert isinstance(trial.awaited, CollectEvidence)
    assert trial.ending is not None and trial.ending.outcome is Outcome.OK
    runs = runs_of(events)
    assert [run.index for run in runs] == [*range(1, 10), 1]
    last = runs[8].searched
    assert (last.of, last.load, last.highest_met, last.lowest_not_met, last.ended) == (
        CONCURRENCY,
        5.0,
        5.0,
        6.0,
        "found",
    )
    assert runs[9].searched.load == 0


async def test_every_run_keeps_its_own_raw_file_with_its_load(tmp_path: Path) -> None:
    load = Capable(5)
    events, _, _ = await searched(load, tmp_path, (USERS,))
    assert len({run.artifact.name for run in runs_of(events)}) == len(runs_of(events))
    assert [(request.metadata["run"], request.metadata["load"]) for request in load.asked][3:5] == [
        ("4", "8"),
        ("5", "8"),
    ]


async def test_variants_of_other_limits_get_the_same_arrivals_and_salts_at_a_load(
    tmp_path: Path,
) -> None:
    """What is drawn is drawn by the load and its repeats, not by how many runs came before."""
    slow, fast = Capable(5), Capable(13)
    await searched(slow, tmp_path / "slow")
    await searched(fast, tmp_path / "fast")

    def drawn(load: Capable) -> dict[tuple[float, int], tuple[object, ...]]:
        asked: dict[tuple[float, int], tuple[object, ...]] = {}
        for request in load.asked:
            offsets = send_offsets_s(request.workload, request.seed, request.run_index)
            asked[request.workload.rate_per_s, request.run_index] = (
                request.salt_scope,
                request.seed,
                offsets,
            )
        return asked

    ours, theirs = drawn(slow), drawn(fast)
    shared = ours.keys() & theirs.keys()
    assert {(8.0, 1), (4.0, 1)} <= shared
    assert all(ours[key] == theirs[key] for key in shared)
    assert ours[8.0, 1] != ours[8.0, 2]
    assert len({asked[0] for asked in ours.values()}) == len(
        {load for load, _ in ours}
    )  # salts of no two loads are alike


async def test_the_journal_of_a_search_brings_the_same_search_back(tmp_path: Path) -> None:
    events, trial, _ = await searched(Capable(12.6), tmp_path)
    lines = [event_to_json(event) for event in events]
    assert replay(map(event_from_json, lines)) == trial
    for count in range(4, len(events)):
        half = replay(map(event_from_json, lines[:count]))
        assert isinstance(half.awaited, MeasureRun)
        assert load_of(half.awaited.workload) == runs_of(events)[count - 4].searched.load


async def test_an_attempt_that_a_restarted_agent_ends_keeps_what_its_runs_said(
    tmp_path: Path,
) -> None:
    events, _, _ = await searched(Capable(12.6), tmp_path)
    trial, _ = step(replay(events[:9]), ev.AgentRestarted("the agent was restarted"), 9.0)
    assert [one.load for one in trial.position.search_runs] == [1, 2, 4, 8, 16]
    assert trial.ending is not None and trial.ending.failure_class == "agent_restarted"


async def test_a_client_that_cannot_drive_a_load_leaves_the_limit_open(tmp_path: Path) -> None:
    def late(workload: Workload) -> RunFacts:
        return replace(FACTS, dispatch_delay_p99_s=0.06 if workload.rate_per_s > 9 else 0.0)

    events, trial, _ = await searched(Capable(1000, late), tmp_path)
    runs = runs_of(events)
    assert [(run.searched.load, is_void(run)) for run in runs[-4:]] == [(16.0, True)] * 3 + [
        (8.0, False)
    ]
    assert (
        runs[-1].searched.highest_met,
        runs[-1].searched.lowest_not_met,
        runs[-1].searched.ended,
    ) == (8.0, 0.0, "client_limited")
    assert trial.ending is not None and trial.ending.outcome is Outcome.OK


async def test_void_runs_that_are_not_the_clients_fail_the_trial_with_their_gate(
    tmp_path: Path,
) -> None:
    events, trial, _ = await searched(
        Capable(1000, lambda _: replace(FACTS, finish_reasons={"stop": 1})), tmp_path
    )
    assert (len(runs_of(events)), runs_of(events)[-1].searched.ended) == (3, "void_runs")
    assert trial.ending is not None
    assert (trial.ending.failure_class, "3 void runs in a row" in trial.ending.message) == (
        "short_output",
        True,
    )


async def test_requests_that_time_out_under_load_are_the_servers_limit(tmp_path: Path) -> None:
    def overloaded(workload: Workload) -> RunFacts:
        return (
            replace(FACTS, requests_ok=60, requests_failed=40, error_kinds={"timeout": 40})
            if workload.rate_per_s > 12.6
            else FACTS
        )

    events, _, _ = await searched(Capable(1000, overloaded), tmp_path)
    last = runs_of(events)[-1].searched
    assert (last.highest_met, last.lowest_not_met, last.ended) == (12.33, 12.88, "found")


async def test_a_server_that_is_not_done_with_the_load_before_is_not_measured(
    tmp_path: Path,
) -> None:
    load = Capable(5, flushed=False)
    events, trial, _ = await searched(load, tmp_path, kind=EngineKind.SIMULATED)
    assert isinstance(events[-1].body, ev.LoadFailed)
    assert "had not finished the previous load" in events[-1].body.message
    assert trial.ending is not None and trial.ending.failure_class == "load_failed"


def test_a_search_crosses_to_the_load_process_as_it_is() -> None:
    request = LoadRequest("http://x", at_load(RATES, 4.0))
    line = json.loads(request_line(1, "run", request))
    assert read_request(line) == request


@pytest.mark.parametrize(
    ("search", "fault"),
    [
        (
            Search("load", 1.0, 64.0, 0.05, 0.99),
            "workloads[0].search.of: 'load' is neither rate nor concurrency",
        ),
        (
            Search(RATE, 64.0, 1.0, 0.05, 0.99),
            "workloads[0].search: 64 to 1 is not a range to search",
        ),
        (
            Search(RATE, 1e-300, 1.0, 0.05, 0.99),
            "workloads[0].search: 1e-300 to 1 is not a range to search",
        ),
        (
            Search(CONCURRENCY, 1.0, 8.5, 0.05, 0.99),
            "workloads[0].search: 1 to 8.5 are not whole numbers of requests",
        ),
        (
            Search(RATE, 1.0, 64.0, 0.0, 0.99),
            "workloads[0].search: within 0 and goodput 0.99 are not between 0 and 1",
        ),
        (
            Search(CONCURRENCY, 1.0, 200_000.0, 0.05, 0.99),
            "workloads[0].concurrency: 200000 is more than the limit of 100000",
        ),
        (
            Search(RATE, 1.0, 1e9, 0.05, 0.99),
            "workloads[0]: 6e+10 requests in a run are more than the limit of 10000000",
        ),
    ],
)
def test_a_search_that_no_agent_carries_out_is_refused(search: Search, fault: str) -> None:
    spec = TrialSpec(
        "t", engine=EngineSpec(EngineKind.SIMULATED), workloads=(replace(RATES, search=search),)
    )
    assert fault in find_spec_faults(spec)
    assert find_spec_faults(replace(spec, workloads=(RATES, USERS))) == ()


@pytest.mark.parametrize("old", [RATES, USERS])
def test_an_agent_from_before_searches_refuses_the_load(old: Workload) -> None:
    """What it reads has no search in it: neither users nor a rate."""
    with pytest.raises(ValueError, match="is not an open loop"):
        send_offsets_s(replace(old, search=Search()), 1, 1)
