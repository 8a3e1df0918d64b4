"""Turns over many hosts and jobs, played to their end: nobody starves, nobody meets, closed hosts
get nothing, free hosts get something.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.core.fairness import initial_host_time
from fleet_controller.core.gang import member_specs
from fleet_controller.core.job import HostChoice
from fleet_controller.core.schedule_inputs import SchedulableHost, waiting_reason
from fleet_controller.core.scheduler import TrialStart, next_starts
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.jobs.job_index import JobIndex
from fleet_controller.store.rows import JobRow
from fleet_protos.trial_types import EngineKind, EngineSpec, Gang, Outcome, Phase, TrialSpec

NAMES = ("a", "b", "c", "d")
GPUS = 8
SIMULATED = EngineKind.SIMULATED


@dataclass(frozen=True)
class Shape:
    """A job to play: `pinned` trials go to the hosts in turn, else blocks to any; `seconds` is what
    one trial takes.
    """

    blocks: int = 3
    variants: int = 2
    pinned: bool = True
    share: bool = False
    nodes: int = 1
    gpus: int = 8
    priority: int = 0
    seconds: int = 60


def trials_of(name: str, shape: Shape, hosts: tuple[str, ...] = NAMES) -> list[Trial]:
    """Each node for itself, in plan order."""
    found: list[Trial] = []
    groups = [
        hosts[first : first + shape.nodes]
        for first in range(0, len(hosts) - shape.nodes + 1, shape.nodes)
    ]
    for block in range(1, shape.blocks + 1):
        lead, *members = groups[block % len(groups)] if shape.pinned else [""] * shape.nodes
        for variant in range(shape.variants):
            engine = EngineSpec(
                SIMULATED, gpus=shape.gpus, gang=Gang(shape.nodes) if shape.nodes > 1 else Gang()
            )
            spec = TrialSpec(
                f"{name}-b{block}-v{variant}",
                1,
                name,
                name,
                f"v{variant}",
                {},
                block,
                lead,
                engine,
                shared=shape.share,
            )
            found += [Trial(spec), *(Trial(member) for member in member_specs(spec, members))]
    return found


@dataclass
class Play:
    """A controller's board and its hosts, played in model time: each trial ends after its job's
    seconds.
    """

    board: JobIndex = field(default_factory=JobIndex)
    closed: dict[str, str] = field(default_factory=dict)
    now_s: int = 1
    seconds: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)  # trial → when
    log: list[tuple[int, str, str]] = field(default_factory=list)  # when, job, trial

    def submit(self, name: str, shape: Shape, hosts: tuple[str, ...] = NAMES) -> None:
        choice = HostChoice(
            hosts,
            every_host=shape.pinned,
            share=shape.share,
            part=shape.gpus / GPUS if shape.share else 1.0,
        )
        joined_s = initial_host_time(self.board.host_times(shape.priority))
        row = JobRow(
            name,
            name,
            "",
            "",
            self.now_s,
            "simulated",
            1.0,
            60.0,
            False,
            shape.priority,
            choice.to_json(),
            joined_s,
        )
        self.seconds[name] = shape.seconds
        self.board.add(row, trials_of(name, shape, hosts))

    def hosts(self) -> list[SchedulableHost]:
        running = self.board.running_by_host()
        return [self._host(name, running.get(name, [])) for name in NAMES]

    def _host(self, name: str, running: list[Trial]) -> SchedulableHost:
        free = GPUS - sum(trial.spec.engine.gpus for trial in running)
        lets_in = all(trial.spec.shared for trial in running)
        return SchedulableHost(
            name,
            {},
            self.closed.get(name, ""),
            len(running),
            lets_in,
            {SIMULATED: GPUS},
            {SIMULATED: free},
        )

    def is_over(self, job: str) -> bool:
        """What has been over for a while leaves the board."""
        return job not in self.board.jobs or self.board.jobs[job].is_over

    def decide(self) -> tuple[TrialStart, ...]:
        """Begin what is next, checked against what must always hold."""
        before = {host.name: host for host in self.hosts()}
        starts = next_starts(
            (job.waiting for job in self.board.open_jobs), before.values(), self.now_s * 10**9
        )
        for start in starts:
            hosts = (start.host, *(host for _, host in start.members))
            assert len(set(hosts)) == len(hosts)
            assert not any(self.closed.get(host) for host in hosts)
            self.board.assign_hosts(self.board.specs_for_start(start))
            job = self.board.job_of(start.trial_id)
            assert job is not None
            assert job.trials[start.trial_id].hosts == hosts  # all of a gang, where its nodes are
            for node in (start.trial_id, *(node for node, _ in start.members)):
                self.board.update_attempt(
                    node,
                    Attempt(
                        start.attempt, "agent", Phase.LAUNCHING, started_unix_ns=self.now_s * 10**9
                    ),
                )
            self.ends[start.trial_id] = self.now_s + self.seconds[job.row.job_id]
            self.log.append((self.now_s, job.row.job_id, start.trial_id))
        self._check_company()
        return starts

    def _check_company(self) -> None:
        for trials in self.board.running_by_host().values():
            assert len(trials) == 1 or all(trial.spec.shared for trial in trials)
            assert sum(trial.spec.engine.gpus for trial in trials) <= GPUS

    def end_next(self) -> bool:
        """Let time pass to the next end; False when nothing runs."""
        if not self.ends:
            return False
        trial_id = min(self.ends, key=lambda trial: (self.ends[trial], trial))
        self.now_s = max(self.now_s, self.ends.pop(trial_id))
        job = self.board.job_of(trial_id)
        assert job is not None
        for node in [
            node.spec.trial_id for node in job.trials[trial_id].nodes or (job.trials[trial_id],)
        ]:
            over = replace(
                job.nodes[node].attempts[-1],
                phase=Phase.OVER,
                outcome=Outcome.OK,
                ended_unix_ns=self.now_s * 10**9,
            )
            self.board.update_attempt(node, over)
        return True

    def to_the_end(self) -> None:
        self.decide()
        while self.end_next():
            self.decide()


SHAPES = st.builds(
    Shape,
    blocks=st.integers(1, 4), variants=st.integers(1, 2), pinned=st.booleans(), share=st.booleans(), nodes=st.just(1),
    gpus=st.sampled_from([1, 4, 8]), priority=st.sampled_from([-1, 0, 0, 5]), seconds=st.integers(1, 300),
)  # fmt: skip
GANGS = st.builds(
    Shape, blocks=st.integers(1, 3), pinned=st.booleans(), nodes=st.integers(2, 4), priority=st.sampled_from([0, 5]),
    seconds=st.integers(1, 300),
)  # fmt: skip
PLAYS = st.lists(st.tuples(st.one_of(SHAPES, GANGS), st.integers(0, 3)), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(PLAYS)
def test_every_job_comes_to_its_end_whatever_else_is_there(plays: list[tuple[Shape, int]]) -> None:
    """Jobs come after some ends of earlier ones. `decide` checks all that must hold at each moment."""
    play = Play()
    for number, (shape, ends) in enumerate(plays):
        play.submit(f"j{number}", shape)
        play.decide()
        for _ in range(ends):
            play.end_next()
            play.decide()
    play.to_the_end()
    assert all(job.is_over for job in play.board.jobs.values())
    for job in play.board.jobs.values():
        places = {(trial.spec.block, trial.hosts) for trial in job.trials.values()}
        assert len(places) == len({block for block, _ in places})  # a block is whole on its hosts


@settings(max_examples=100, deadline=None)
@given(
    PLAYS,
    st.dictionaries(
        st.sampled_from(NAMES), st.sampled_from(["drained", "quarantined: x", "away"]), max_size=3
    ),
)
def test_hosts_that_are_closed_get_nothing_and_hold_up_nobody_else(
    plays: list[tuple[Shape, int]], closed: dict[str, str]
) -> None:
    play = Play()
    for number, (shape, _) in enumerate(plays):
        play.submit(f"j{number}", shape)
    play.closed = closed
    play.to_the_end()
    hosts = {host.name: host for host in play.hosts()}
    for job in play.board.open_jobs:
        assert waiting_reason(job.waiting, hosts)  # what is left over could not run, and says why
        for trials in job.waiting.pinned.values():
            assert any(host in closed for host in trials[0].hosts)
    play.closed = {}
    play.to_the_end()
    assert not play.board.open_jobs


@settings(max_examples=100, deadline=None)
@given(PLAYS)
def test_no_host_is_free_that_a_waiting_trial_could_take_at_once(
    plays: list[tuple[Shape, int]],
) -> None:
    """But for hosts that a gang, or who wants a host alone, keeps."""
    play = Play()
    for number, (shape, _) in enumerate(plays):
        play.submit(f"j{number}", replace(shape, nodes=1, share=False))
    play.decide()
    while play.end_next():
        play.decide()
        free = {host.name for host in play.hosts() if not host.running}
        for job in play.board.open_jobs:
            assert free.isdisjoint(job.waiting.pinned)
            assert not (free and job.waiting.blocks)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Shape, priority=st.integers(-2, 2), pinned=st.booleans(), blocks=st.integers(1, 3)
        ),
        min_size=2,
        max_size=5,
    )
)
def test_nothing_of_lower_priority_begins_while_something_higher_could(shapes: list[Shape]) -> None:
    play = Play()
    for number, shape in enumerate(shapes):
        play.submit(f"j{number}", shape, hosts=("a",))
    play.closed = dict.fromkeys(NAMES[1:], "away")
    play.to_the_end()
    priorities = [play.board.jobs[job].row.priority for _, job, _ in play.log]
    assert priorities == sorted(priorities, reverse=True)


def test_a_small_job_gets_every_other_turn_beside_a_large_older_one() -> None:
    play = Play(closed=dict.fromkeys(NAMES[1:], "away"))
    play.submit("large", Shape(blocks=50), hosts=("a",))
    for _ in range(20):
        play.decide()
        play.end_next()
    play.submit("small", Shape(blocks=3), hosts=("a",))
    play.to_the_end()
    order = [job for _, job, _ in play.log]
    first = order.index("small")
    assert first <= 22
    assert Counter(order[first : first + 11])["small"] in (5, 6)


def test_a_job_that_could_not_run_for_long_does_not_make_up_for_it_alone() -> None:
    play = Play(closed={"b": "drained", "c": "away", "d": "away"})
    play.submit("waited", Shape(blocks=50), hosts=("b",))
    play.submit("other", Shape(blocks=100), hosts=("a", "b"))
    for _ in range(40):
        play.decide()
        play.end_next()
    del play.closed["b"]
    began = len(play.log)
    for _ in range(40):
        play.decide()
        play.end_next()
    counts = Counter(job for _, job, _ in play.log[began:])
    assert counts["waited"] in range(16, 25)  # of the two hosts one each


def test_turns_go_by_host_time_not_by_trials() -> None:
    """Trials of one job take ten times as long: it gets one for ten of the other's."""
    play = Play(closed=dict.fromkeys(NAMES[1:], "away"))
    play.submit("long", Shape(blocks=20, seconds=600), hosts=("a",))
    play.submit("short", Shape(blocks=200, seconds=60), hosts=("a",))
    for _ in range(110):
        play.decide()
        play.end_next()
    counts = Counter(job for _, job, _ in play.log)
    assert counts["short"] == pytest.approx(10 * counts["long"], rel=0.2)


def test_a_flow_of_new_jobs_does_not_hold_up_an_old_one() -> None:
    play = Play(closed=dict.fromkeys(NAMES[1:], "away"))
    play.submit("old", Shape(blocks=10, variants=1), hosts=("a",))
    for number in range(100):
        play.submit(f"new{number}", Shape(blocks=1, variants=1), hosts=("a",))
        play.decide()
        play.end_next()
        if play.is_over("old"):
            break
    assert play.is_over("old")
    assert (
        len(play.log) < 70
    )  # a job came with each trial that ended: its share falls, its turn comes


def test_a_gang_comes_to_its_turn_in_a_flow_of_single_trials() -> None:
    play = Play()
    play.submit("singles", Shape(blocks=400, variants=1, seconds=60))
    for _ in range(9):
        play.decide()
        play.end_next()
    play.submit("gang", Shape(blocks=2, variants=1, nodes=4))
    play.decide()
    for _ in range(40):
        play.end_next()
        play.decide()
    assert play.board.jobs["gang"].is_over


def test_a_gang_that_waits_for_a_closed_host_keeps_nothing() -> None:
    play = Play(closed={"d": "drained"})
    play.submit("gang", Shape(blocks=1, variants=1, nodes=4))
    play.submit("singles", Shape(blocks=8, variants=1), hosts=NAMES[:3])
    play.to_the_end()
    assert play.board.jobs["singles"].is_over
    assert not play.board.jobs["gang"].is_over


def test_who_wants_a_host_alone_comes_to_its_turn_among_those_that_share_it() -> None:
    play = Play(closed=dict.fromkeys(NAMES[1:], "away"))
    for number in range(2):
        play.submit(
            f"sharing{number}",
            Shape(blocks=60, variants=1, share=True, gpus=4, seconds=50 + 7 * number),
            hosts=("a",),
        )
    play.decide()
    play.submit("alone", Shape(blocks=1, variants=1), hosts=("a",))
    for _ in range(12):
        play.end_next()
        play.decide()
    assert play.board.jobs["alone"].trials_over or play.board.jobs["alone"].active


@pytest.mark.parametrize("later", ["c", "d"])
def test_a_host_that_joins_later_takes_blocks_of_any_host(later: str) -> None:
    play = Play(closed=dict.fromkeys(NAMES[1:], "away"))
    play.submit("j", Shape(blocks=4, pinned=False), hosts=())
    play.decide()
    del play.closed[later]
    play.to_the_end()
    assert {trial.spec.host for trial in play.board.jobs["j"].trials.values()} == {"a", later}
