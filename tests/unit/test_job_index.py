"""The controller's picture of its jobs: what it counts as it goes is what counting anew would give."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.schedule_inputs import waiting_job_of
from fleet_controller.core.scheduler import remaining_s
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.jobs.indexed_job import IndexedJob, SeenTrials, job_change
from fleet_controller.jobs.job_index import JobIndex
from fleet_controller.jobs.job_views import job_detail, job_summary
from fleet_controller.jobs.state_writer import progress_text
from fleet_controller.store.rows import JobRow
from fleet_protos.errors import ErrorKind
from fleet_protos.events import Event, ServerProgressed
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

ROW = JobRow("j", "j", "", "", 1, "simulated", 20.0, 60.0)
NAMES = ("a", "b", "c")
PHASES = st.sampled_from([Phase.QUEUED, Phase.MEASURING])
ENDS = st.sampled_from(
    [
        (Outcome.OK, ErrorKind.NONE),
        (Outcome.FAILED, ErrorKind.SERVER_OOM),
        (Outcome.FAILED, ErrorKind.LOAD_FAILED),
    ]
)
RUNNING = st.builds(Attempt, number=st.integers(1, 3), phase=PHASES)
OVER = st.builds(
    lambda number, end, ended: Attempt(number, "", Phase.OVER, *end, started_unix_ns=1, ended_unix_ns=ended),
    st.integers(1, 3), ENDS, st.integers(2, 10**12),
)  # fmt: skip
STEPS = st.lists(
    st.one_of(st.none(), st.tuples(st.sampled_from(NAMES), st.one_of(RUNNING, OVER))), max_size=20
)


@given(STEPS)
def test_counts_kept_as_trials_change_are_those_of_counting_anew(
    steps: list[tuple[str, Attempt] | None],
) -> None:
    """None: the job is cancelled."""
    job = IndexedJob(ROW, [Trial(TrialSpec(trial_id=name, host="h")) for name in NAMES])
    for step in steps:
        if step is None:
            job.cancel()
        else:
            name, attempt = step
            job.update_node(job.trials[name].with_attempt(attempt))
        trials = list(job.trials.values())
        assert job.summary == job_summary(job.row, trials)
        assert job.is_over is (job.summary.state in ("done", "failed", "cancelled"))
        assert job.left_s == (0.0 if job.is_over else remaining_s(trials, ROW.planned_s))


def test_what_an_external_server_lacks_is_the_trouble_of_its_job_until_it_is_ready() -> None:
    index = JobIndex()
    index.add(ROW, [Trial(TrialSpec(trial_id="a"))])
    event = Event(body=ServerProgressed("start", message="status 429: slow down"))
    index.update_attempt("a", Attempt(1, phase=Phase.LAUNCHING), progress_text(event))
    job = index.jobs["j"]
    assert job.summary.trouble == job.progress["a"] == "not ready: status 429: slow down"
    assert job_detail(ROW, job.trials.values(), "", job.progress).trials[0].progress
    index.update_attempt("a", Attempt(1, phase=Phase.WARMING))
    assert (job.summary.trouble, job.progress) == ("", {})


def test_a_look_shows_all_trials_first_and_then_those_that_changed() -> None:
    job = IndexedJob(ROW, [Trial(TrialSpec(trial_id=name)) for name in NAMES])
    seen: SeenTrials = {}
    assert [status.trial_id for status in job_change(job, seen).trials] == list(NAMES)
    assert job_change(job, seen).trials == ()
    job.update_node(job.trials["b"].with_attempt(Attempt(1, phase=Phase.MEASURING)))
    assert [(status.trial_id, status.phase) for status in job_change(job, seen).trials] == [
        ("b", Phase.MEASURING)
    ]


def test_how_far_a_launch_has_come_is_shown_until_the_launch_is_over() -> None:
    board = JobIndex()
    board.add(ROW, [Trial(TrialSpec(trial_id=name)) for name in NAMES])
    job, seen = board.jobs["j"], dict[str, Trial]()
    job_change(job, seen)
    board.update_attempt("b", Attempt(1, phase=Phase.LAUNCHING))
    board.update_attempt("b", Attempt(1, phase=Phase.LAUNCHING, agent_id="a"), "load_weight 61/163")
    assert [(status.trial_id, status.progress) for status in job_change(job, seen).trials] == [
        ("b", "load_weight 61/163")
    ]
    board.update_attempt("b", Attempt(1, phase=Phase.WARMING))
    assert [(status.trial_id, status.progress) for status in job_change(job, seen).trials] == [
        ("b", "")
    ]


PLACED = ("", "h", "i")
MOVES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(PLACED), st.one_of(st.none(), RUNNING, OVER)),
    max_size=20,
)


@given(MOVES)
def test_what_waits_is_kept_as_counting_anew_would_find_it(
    moves: list[tuple[str, str, Attempt | None]],
) -> None:
    job = IndexedJob(
        ROW,
        [Trial(TrialSpec(trial_id=name, block=number % 2)) for number, name in enumerate(NAMES)],
    )
    for name, host, attempt in moves:
        trial = job.trials[name]
        host = (
            trial.spec.host or host or ("h" if attempt else "")
        )  # a host is for good, and nothing begins without one
        moved = replace(trial, spec=replace(trial.spec, host=host))
        job.update_node(moved if attempt is None else moved.with_attempt(attempt))
        anew = waiting_job_of("j", job.trials.values())
        assert job.waiting.pinned == anew.pinned
        assert [list(block) for block in job.waiting.blocks] == sorted(
            anew.blocks, key=lambda block: block[0].spec.block
        )
        assert (set(job.hosts_used), set(job.active)) == (
            set(anew.hosts_used),
            {name for name in NAMES if job.trials[name].is_active},
        )


def test_a_look_tells_trials_that_a_cancel_ended_before_they_began() -> None:
    job = IndexedJob(ROW, [Trial(TrialSpec(trial_id=name, host="h")) for name in NAMES])
    seen: SeenTrials = {}
    job_change(job, seen)
    job.cancel()
    assert {(status.phase, status.outcome) for status in job_change(job, seen).trials} == {
        (Phase.OVER, Outcome.CANCELLED)
    }


def test_jobs_that_ended_long_ago_are_let_go_and_what_comes_of_them_later_is_harmless() -> None:
    board = JobIndex()
    over = Attempt(1, phase=Phase.OVER, outcome=Outcome.OK)
    for number in range(40):
        board.add(
            replace(ROW, job_id=f"j{number}"), [Trial(TrialSpec(trial_id=f"t{number}", host="h"))]
        )
    board.update_attempt("t0", Attempt(1, phase=Phase.MEASURING))
    for number in range(1, 40):
        board.update_attempt(f"t{number}", over)
    assert list(board.jobs) == ["j0", *(f"j{number}" for number in range(24, 40))]
    assert board.update_attempt("t3", over) is None
    assert board.job_of("t3") is None
    assert [job.row.job_id for job in board.open_jobs] == ["j0"]
