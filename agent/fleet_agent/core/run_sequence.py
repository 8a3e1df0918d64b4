"""Decides which run of a trial's workload is measured next, and when the workload is done."""

from __future__ import annotations

from dataclasses import replace

from fleet_agent.core.effects import MeasureRun
from fleet_agent.core.load_search import VOID_RUNS, next_load, to_search_run
from fleet_agent.core.steady_state import rate_of
from fleet_agent.core.stop_rule import Decision, decide
from fleet_agent.core.trial import AgentTrial, MeasurePosition
from fleet_protos.events import RunFinished
from fleet_protos.trial_types import Workload
from fleet_protos.workload_rules import at_load


def warm_up_workload(workload: Workload) -> Workload:
    """Return the workload that the warm-up sends. A search warms up at its lowest load."""
    return at_load(workload, workload.search.least) if workload.search.of else workload


def next_run(trial: AgentTrial) -> MeasureRun:
    """Return the order for the next run of the current workload. In a search, the run has the next
    load.
    """
    position, workload = trial.position, trial.spec.workloads[trial.position.workload]
    if workload.search.of:
        workload = at_load(workload, next_load(workload.search, position.search_runs).load)
    return MeasureRun(workload, position.runs + 1, position.search_runs)


def decide_after_run(trial: AgentTrial) -> Decision:
    """Decide from the runs so far whether the current workload is measured again."""
    position, search = trial.position, trial.spec.workloads[trial.position.workload].search
    if not search.of:
        return decide(position.values, position.void_in_row, trial.spec.measure, position.warm_up)
    ended = next_load(search, position.search_runs).ended
    return Decision.GIVE_UP if ended == VOID_RUNS else Decision.ENOUGH if ended else Decision.MORE


def count_run(position: MeasurePosition, body: RunFinished) -> MeasurePosition:
    """Return the position after a run. A run without a usable rate counts as void."""
    if body.run.searched.load:
        return replace(
            position,
            runs=position.runs + 1,
            search_runs=(*position.search_runs, to_search_run(body.run)),
        )
    rate = rate_of(body.run)
    if rate is None:
        return replace(position, runs=position.runs + 1, void_in_row=position.void_in_row + 1)
    return replace(
        position,
        runs=position.runs + 1,
        values=(*position.values, rate),
        void_in_row=0,
        warm_up=body.run.warm_up_runs,
    )
