"""Promises of the way of a warm-up run: seen by the agent when later runs show it, kept in what is
stored, and part of no number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from fleet_agent.core.effects import MeasureRun
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.core.trial_machine import new_trial, step
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply, ParquetFile
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.launches import group_launches, without_warm_up
from fleet_controller.core.controller_api import JobDetail, JobSummary, StoredRun
from fleet_controller.report.comparison_export import comparison_json
from fleet_controller.report.comparison_output import comparison_remarks
from fleet_controller.report.job_output import kept_out_table, show_json
from fleet_controller.report.job_progress import run_text
from fleet_protos import events as ev
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Measure,
    Outcome,
    RunResult,
    TrialSpec,
    Workload,
    is_void,
)

STORY = (81.0, 83.6, 82.8, 92.0, 94.0)
LATER = (93.2, 92.4, 93.6)
COLD = (60.0, 100.1, 99.8, 100.0, 100.2, 99.9)
MEASURE = Measure(runs_min=5, runs_max=20, precision=0.02)
FACTS = RunFacts(
    requests_ok=1, requests_failed=0, error_kinds={}, finish_reasons={"length": 1}, completion_tokens_min=9, completion_tokens_max=9,
    zero_token_requests=0, client_count_mismatch=0.0, cached_token_ratio=0.0, achieved_concurrency=1.0, dispatch_delay_p99_s=0.0,
    loop_lag_p99_s=0.0, speculation=False, accept_length=None, answered_share=None,
    output_tokens=9, prompt_tokens=9, counted_output_tokens=9.0, counted_prompt_tokens=9.0, counted_requests=1.0,
)  # fmt: skip


class Given:
    """A load whose n-th run has the n-th rate; 0 stands for one in which a request failed."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = iter(rates)

    async def run(self, request: LoadRequest) -> LoadReply:
        raw = Path(request.parquet)
        raw.write_bytes(b"rows")  # noqa: ASYNC240 - nothing else runs here
        rate = next(self.rates)
        facts = FACTS if rate else replace(FACTS, requests_failed=1)
        return LoadReply(
            metrics={"output_tok_s": rate or 1.0},
            facts=asdict(facts),
            parquet=ParquetFile(str(raw), "ab", 4),
        )


async def measured(rates: Sequence[float], measure: Measure, folder: Path) -> list[RunResult]:
    """All runs that the machine orders of one workload, which have these rates."""
    workload = Workload("single", concurrency=1, output_tokens=9)
    spec = TrialSpec(
        "t",
        engine=EngineSpec(EngineKind.EXTERNAL, url="http://x"),
        workloads=(workload,),
        measure=measure,
    )
    place = folder / "t" / "1"
    place.mkdir(parents=True)
    errands = EffectHandlers(
        spec, TrialTools(Supervisor(), cast(LoadProcess, Given(rates)), Ports(), ENGINES), (), place
    )
    trial = new_trial(spec)
    for body in (
        ev.TrialAccepted(spec),
        ev.ServerReady(1.0),
        ev.ConfigurationProved(),
        ev.WarmedUp("single"),
    ):
        trial, _ = step(trial, body, 0.0)
    runs = []
    while isinstance(trial.awaited, MeasureRun):
        finished = await errands.measure(trial.awaited.workload, trial.awaited.index)
        assert isinstance(finished, ev.RunFinished)
        runs.append(finished.run)
        trial, _ = step(trial, finished, 0.0)
    return runs


def stored(runs: Sequence[RunResult], variant: str = "v", block: int = 1) -> list[StoredRun]:
    return [
        StoredRun(f"job-b{block}-{variant}", 1, variant, "h1", block, Outcome.OK, run)
        for run in runs
    ]


async def test_the_published_five_runs_are_followed_by_more_until_the_second_level_has_five(
    tmp_path: Path,
) -> None:
    runs = await measured((*STORY, *LATER), MEASURE, tmp_path)
    assert [run.warm_up_runs for run in runs] == [0, 0, 0, 0, 3, 3, 3, 3]
    assert [is_void(run) for run in runs] == [False] * 8  # each is kept as it was when it finished
    (launch,) = group_launches(without_warm_up(stored(runs)), ["output_tok_s"])
    assert launch.runs == {"output_tok_s": 5}
    assert launch.values["output_tok_s"] == pytest.approx(math.prod((92.0, 94.0, *LATER)) ** 0.2)


async def test_a_cold_first_run_is_dropped_alone(tmp_path: Path) -> None:
    runs = await measured(COLD, MEASURE, tmp_path)
    assert [run.warm_up_runs for run in runs] == [0, 0, 1, 1, 1, 1]


async def test_runs_that_never_become_steady_all_count_and_the_last_one_says_so(
    tmp_path: Path,
) -> None:
    runs = await measured(STORY, replace(MEASURE, runs_max=5), tmp_path)
    assert [[gate.code for gate in run.gates] for run in runs] == [[], [], [], [], ["not_steady"]]
    assert (runs[-1].warm_up_runs, is_void(runs[-1])) == (0, False)
    comparison = compare(stored(runs), "v")
    assert comparison.rows[0].runs == 5
    (told,) = [line for line in comparison_remarks(comparison) if "not_steady" in line]
    assert told.startswith(
        "flag not_steady: the launch never became steady in 5 valid runs: its rate or latency still changed by +12.8 % after the first 3 runs; all"
    )
    assert told.endswith(" (v single on h1 ×1)")
    assert comparison.notes == (
        "no steady state in v single on h1: its mean mixes different speeds or a drift",
    )


def test_places_without_a_steady_state_are_named_up_to_three() -> None:
    gates = (Gate("not_steady", GateEffect.FLAG, "never steady"),)
    runs = [
        run
        for name in "abcde"
        for run in stored([RunResult("w", 1, metrics={"output_tok_s": 9.0}, gates=gates)], name)
    ]
    (note,) = compare(runs, "a").notes
    assert note.startswith("no steady state in a w on h1, b w on h1, c w on h1 and 2 more: ")


async def test_a_fixed_warm_up_drops_and_flags_nothing(tmp_path: Path) -> None:
    runs = await measured(STORY, replace(MEASURE, runs_max=5, warmup_requests=8), tmp_path)
    assert [(run.warm_up_runs, run.gates) for run in runs] == [(0, ())] * 5


async def test_void_runs_are_no_levels_and_are_not_counted_among_the_dropped(
    tmp_path: Path,
) -> None:
    runs = await measured((COLD[0], 0.0, *COLD[1:]), MEASURE, tmp_path)
    assert [run.index for run in without_and_void(runs)] == [1, 2]
    assert runs[-1].warm_up_runs == 1


def without_and_void(runs: Sequence[RunResult]) -> list[RunResult]:
    return [
        stored_run.run for stored_run in without_warm_up(stored(runs)) if is_void(stored_run.run)
    ]


def three(warm_up_runs: Sequence[int], **changes: object) -> list[StoredRun]:
    runs = [
        RunResult(
            "single", index, index, metrics={"output_tok_s": 100.0 * index}, warm_up_runs=count
        )
        for index, count in enumerate(warm_up_runs, start=1)
    ]
    return [replace(run, **changes) for run in stored(runs)]  # type: ignore[arg-type]


def test_the_newest_valid_run_has_the_word_in_whatever_order_runs_come() -> None:
    for runs in (three([0, 2, 1]), three([0, 2, 1])[::-1]):
        marked = {run.run.index: is_void(run.run) for run in without_warm_up(runs)}
        assert marked == {1: True, 2: False, 3: False}
    voided = three([0, 1, 0])
    voided[2] = replace(
        voided[2], run=replace(voided[2].run, gates=(Gate("short_output", GateEffect.VOID_RUN),))
    )
    assert [is_void(run.run) for run in without_warm_up(voided)] == [True, False, True]


def test_each_launch_and_workload_has_a_warm_up_of_its_own() -> None:
    one, other = three([0, 0, 1]), three([0, 0, 0], trial_id="another")
    busy = [replace(run, run=replace(run.run, workload="busy")) for run in three([0, 0, 0])]
    assert [is_void(run.run) for run in without_warm_up([*one, *other, *busy])] == [
        True,
        *[False] * 8,
    ]


def test_what_is_stored_is_not_changed_by_looking_at_it() -> None:
    runs = three([0, 0, 1])
    without_warm_up(runs)
    assert not is_void(runs[0].run)


def test_a_dropped_run_is_counted_in_the_comparison_and_named_by_show() -> None:
    runs = three([0, 0, 1])
    comparison = compare(runs, "v")
    (row,) = comparison.rows
    assert (row.runs, row.mean) == (2, pytest.approx(60_000**0.5))
    assert comparison_json(comparison)["rows"][0]["gates"][0] | {"message": ""} == {
        "code": "warming_up",
        "count": 1,
        "message": "",
        "reasons": [],
        "voided": 1,
    }
    assert kept_out_table(runs).rows == (("job-b1-v", "1", "single", "1", "warming_up"),)
    assert show_json(JobDetail(), runs)["kept_out"] == [
        {"trial": "job-b1-v", "attempt": 1, "workload": "single", "run": 1, "gates": ["warming_up"]}
    ]


def test_the_run_that_shows_it_says_so_while_the_job_is_watched() -> None:
    run, job = RunResult("single", 4, metrics={"output_tok_s": 88.84}), JobSummary()
    assert run_text(run, job) == "single 88.8 tok/s"
    assert (
        run_text(replace(run, warm_up_runs=1), job)
        == "single 88.8 tok/s, the first run was warm-up"
    )
    assert (
        run_text(replace(run, warm_up_runs=3), job)
        == "single 88.8 tok/s, the first 3 runs were warm-up"
    )
