"""A controller that starts on a full store: what it asks of the database grows with its jobs, never
with their trials.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from benchmarks.full_store import add_finished_job, make_spec
from fleet_controller.jobs.queries import ReadOnlyController
from fleet_controller.jobs.state_writer import StateWriter
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import Outcome

JOBS = 3


class Asked:
    """The statements that a store was asked, and how often each."""

    def __init__(self, store: Store) -> None:
        self.count: Counter[str] = Counter()
        event.listen(store.engine, "before_cursor_execute", self._note)

    def _note(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self.count[statement] += 1


def filled(folder: Path, trials: int) -> Store:
    """Jobs that are over, and one that still waits."""
    store = Store.open(str(folder / "store.sqlite3"))
    following = 1
    for number in range(JOBS):
        following = add_finished_job(store, f"job-{number}", trials, following)
    waiting = JobRow("waits", "waits", "", "", following, "simulated", 20.0, 60.0)
    store.add_job(waiting, [make_spec("waits", number) for number in range(trials)])
    return store


async def start(folder: Path, trials: int) -> tuple[Counter[str], StateWriter]:
    """What is asked while a controller reads its jobs."""
    store = filled(folder, trials)
    asked = Asked(store)
    desk = StateWriter(store, RunSeries())
    await desk.load()
    desk.close()
    store.close()
    return asked.count, desk


async def test_a_start_asks_as_much_of_a_store_with_many_trials_as_of_one_with_few(
    tmp_path: Path,
) -> None:
    few, _ = await start(tmp_path / "few", 4)
    many, desk = await start(tmp_path / "many", 100)
    assert many == few
    assert max(many.values()) <= JOBS + 2, "at most once a job"
    assert not [
        statement
        for statement in many
        if "from events" in statement.lower() or "from runs" in statement.lower()
    ]
    assert list(desk.job_index.jobs) == ["waits"], "what is over is not kept in memory"
    assert len(desk.job_index.jobs["waits"].trials) == 100


@pytest.mark.parametrize("ask", ["ls", "show"])
async def test_lists_ask_as_much_of_a_store_with_many_trials_as_of_one_with_few(
    tmp_path: Path, ask: str
) -> None:
    counts = []
    for trials in (4, 100):
        store = filled(tmp_path / str(trials), trials)
        asked, jobs = Asked(store), ReadOnlyController(store, tmp_path)
        if ask == "ls":
            assert {job.trials for job in await jobs.jobs()} == {trials}
        else:
            assert {trial.outcome for trial in (await jobs.job("job-1")).trials} == {Outcome.OK}
        store.close()
        counts.append(asked.count)
    assert counts[0] == counts[1]
