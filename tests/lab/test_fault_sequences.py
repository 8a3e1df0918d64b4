"""Random sequences of faults on real lab hosts: whatever comes one after another or at once, no run
is lost or doubled, and jobs end.

`LAB_SEQUENCES=60` plays more of them, `LAB_SEEDS=7,21` those of these seeds alone. A seed gives the
same faults for the same moments of a trial each time; how far a host has come by then is the
machine's. A clock once set wrong stays so for the host's later sequences.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random

import grpc
import pytest

from fleet_controller.core.controller_api import JobDetail, TrialStatus
from fleet_controller.core.retry import NEVER, may_retry, rule_for
from fleet_protos.trial_types import Outcome, Phase
from fleet_protos.v1 import controller_pb2 as pb
from tests.lab import faults
from tests.lab.faults import ALL, Fault, Site, sites
from tests.lab.fleet import CALL_S, LOG_END, LabFleet
from tests.lab.lab import Lab
from tests.lab.programs import LabTrouble
from tests.lab.report import chosen, show, table
from tests.lab.trials import (
    HostJournal,
    attempts,
    ends,
    start_loads,
    steady,
    submit,
    trouble_with,
    wait_over,
)

HOSTS = 5
MOMENTS = (Phase.LAUNCHING, Phase.WARMING, Phase.MEASURING, Phase.COLLECTING, Phase.STOPPING)
MOMENT_S = 15.0  # a moment that does not come is not waited for any longer
LOOK_S = 0.02
RESTARTS = {
    faults.KILL_AGENT,
    faults.STOP_AGENT,
    faults.POWER_OFF,
    faults.AHEAD,
    faults.BEHIND,
    faults.DISK_FULL,
}
BLAMED: Mapping[str, Set[Fault]] = {  # what a failure of that class may come from
    "agent_restarted": RESTARTS,
    "agent_stopped": RESTARTS - {faults.KILL_AGENT, faults.POWER_OFF},  # by SIGTERM
    "killed": {faults.KILL_SERVER},
    "load_failed": {faults.KILL_LOAD, faults.KILL_LOAD_TASK, faults.DISK_FULL},
    **{
        key: {faults.DISK_FULL}
        for key in ("disk_full", "journal_failed", "preflight_disk", "launch_failed")
    },
}
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: sequence
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 8
  args: {{tp_size: 8}}
  stop_timeout: 2s
  simulation: {{time_scale: 4, ready_after: {ready_s:.1f}s, ignore_term: {ignore_term}}}
workloads: {{single: {{concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: 200}}}}
measure: {{launches: {launches}, runs: {{min: 2, max: 2}}, warmup: 1}}
hosts: {{names: [{host}]}}
"""


def seeds() -> list[int]:
    """Those that are asked for."""
    if os.environ.get("LAB_SEEDS"):
        return [int(seed) for seed in os.environ["LAB_SEEDS"].split(",")]
    return list(range(1, 1 + int(os.environ.get("LAB_SEQUENCES", "20"))))


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault `after_s` from the next time that the host's trial is in a phase. `stays`: until the
    one after it is mended.
    """

    fault: Fault
    moment: Phase
    after_s: float
    lasts_s: float
    stays: bool

    def __str__(self) -> str:
        lasts = "until after the next" if self.stays else f"for {self.lasts_s:.1f} s"
        return f"{self.fault.name} at {self.moment.name.lower()}+{self.after_s:.1f} s {lasts}"


@dataclass(frozen=True, slots=True)
class Course:
    """What a seed comes to, and what came of it."""

    seed: int
    strikes: tuple[Strike, ...]
    ready_s: float
    ignore_term: bool
    launches: int
    host: str = ""
    clock_s: float = 0.0  # by how much the host's was wrong when the sequence began
    struck: tuple[
        str, ...
    ] = ()  # what each strike hit; empty where there was nothing to hit at that moment
    ends: tuple[str, ...] = ()
    took_s: float = 0.0
    trouble: tuple[str, ...] = ()
    log: str = ""

    @property
    def told(self) -> list[str]:
        """Each strike with what it hit, where that is known."""
        hits = zip_longest(self.strikes, self.struck, fillvalue="unknown")
        return [f"{strike} ({what or 'nothing'})" for strike, what in hits]


def drawn(seed: int) -> Course:
    """The sequence of a seed."""
    random = Random(seed)

    def strike() -> Strike:
        return Strike(
            random.choice(ALL), random.choice(MOMENTS), random.choice((0.0, random.uniform(0, 1.5))),
            random.uniform(0.1, 8.0), random.random() < 0.3,
        )  # fmt: skip

    strikes = tuple(strike() for _ in range(random.randint(1, 4)))
    return Course(
        seed, strikes, random.choice((0.0, 1.0)), random.random() < 0.3, random.choice((1, 1, 2))
    )


@pytest.fixture(scope="module")
def fleet(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFleet]:
    opened = LabFleet.open(shared_lab, tmp_path_factory.mktemp("fleet"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def played(fleet: LabFleet, request: pytest.FixtureRequest) -> Mapping[int, Course]:
    """Those sequences whose tests were chosen, side by side on as many hosts."""
    began_s = time.monotonic()
    wanted = sorted(chosen(request.session, "seed"))
    fleet.up(min(HOSTS, len(wanted)))
    places = sites(fleet)
    start_loads(places)
    waiting, turn = iter(wanted), threading.Lock()

    def work(site: Site) -> list[Course]:
        done: list[Course] = []
        while True:
            with turn:
                seed = next(waiting, None)
            if seed is None:
                return done
            done.append(play(drawn(seed), site))

    with ThreadPoolExecutor(len(places)) as pool:
        found = {sequence.seed: sequence for done in pool.map(work, places) for sequence in done}
    show(
        request.config, listed([found[seed] for seed in sorted(found)], time.monotonic() - began_s)
    )
    return found


@pytest.mark.parametrize("seed", seeds())
def test_whatever_strikes_no_run_is_lost_or_doubled_nothing_is_left_and_the_job_ends(
    played: Mapping[int, Course], seed: int
) -> None:
    sequence = played[seed]
    print(sequence.log)
    if sequence.trouble:
        where = f"seed {seed} on {sequence.host}, its clock {sequence.clock_s:+.0f} s:"
        pytest.fail(
            "\n".join([where, *map(str, sequence.strikes), *sequence.trouble]), pytrace=False
        )


def test_a_seed_gives_the_same_faults_each_time_and_seeds_reach_every_fault() -> None:
    assert drawn(7) == drawn(7)
    assert {strike.fault for seed in range(200) for strike in drawn(seed).strikes} == set(ALL)


def play(sequence: Course, site: Site) -> Course:
    """What comes of it; the host is whole again afterwards, but for its clock."""
    began_s = time.monotonic()
    done = replace(sequence, host=site.host.name, clock_s=site.host.clock_ahead_s)
    try:
        done = _play(done, site)
    except (
        LabTrouble,
        grpc.RpcError,
        AssertionError,
        ValueError,
    ):  # such a sequence has failed, and the others are played
        done = replace(done, trouble=(traceback.format_exc(),))
    finally:
        make_whole(site)
    logs = (
        {site.host.name: site.agent.log(), "controller": site.fleet.controller.log()}
        if done.trouble
        else {}
    )
    log = "\n".join(f"--- {name}\n{log[-LOG_END:]}" for name, log in logs.items())
    return replace(done, took_s=time.monotonic() - began_s, log=log)


def _play(sequence: Course, site: Site) -> Course:
    fleet, journal = site.fleet, HostJournal(site)
    knobs = {
        "ready_s": sequence.ready_s,
        "ignore_term": str(sequence.ignore_term).lower(),
        "launches": sequence.launches,
    }
    job_id = submit(
        fleet, JOB.format(host=site.host.name, **knobs), f"{sequence.seed} {time.monotonic_ns()}"
    )
    staying: list[Fault] = []
    struck: list[str] = []
    for strike in sequence.strikes:
        await_moment(journal, job_id, strike.moment)
        threading.Event().wait(strike.after_s)
        struck.append("")
        with contextlib.suppress(
            LabTrouble
        ):  # what one fault does to the mending of another is part of the sequence
            struck[-1] = ", ".join(sorted(set(strike.fault.strike(site).what)))
        if strike.stays:
            staying.append(strike.fault)
            continue
        threading.Event().wait(strike.lasts_s)
        for fault in [strike.fault, *staying]:
            with contextlib.suppress(LabTrouble):
                fault.mend(site)
        staying.clear()
    site.mend()
    detail = wait_over(fleet, job_id)
    told = [attempts(fleet, trial) for trial in detail.trials]
    trouble = [
        *trouble_with(site, journal, job_id),
        *trouble_with_ends(detail, told),
        *trouble_with_blame(sequence.strikes, told),
    ]
    return replace(
        sequence,
        struck=tuple(struck),
        ends=tuple(end for trial in told for end in ends(trial)),
        trouble=tuple(trouble),
    )


def await_moment(journal: HostJournal, job_id: str, moment: Phase) -> None:
    """Return when the host's journal has a new event in that phase, the job's last trial is over,
    or it does not come to that.
    """
    before = len(journal.of(job_id))
    deadline = time.monotonic() + MOMENT_S
    while time.monotonic() < deadline and not any(
        event.phase is moment for event in journal.of(job_id)[before:]
    ):
        time.sleep(LOOK_S)


def trouble_with_ends(detail: JobDetail, told: Sequence[Sequence[TrialStatus]]) -> Iterator[str]:
    """A trial ended well, or was tried as often as its failures may be. A bug, or a job that is
    wrong, is never a fault's doing.
    """
    for trial in told:
        *earlier, last = trial
        failures = [attempt.kind for attempt in trial if attempt.outcome is Outcome.FAILED]
        is_well = last.outcome is Outcome.OK and len(failures) == len(earlier)
        is_enough = len(failures) == len(trial) and not may_retry(failures)
        if not (is_well or is_enough) or any(rule_for(kind) == NEVER for kind in failures):
            how = [
                f"attempt {one.attempt}: {one.outcome.name} {one.failure_class}: {one.message}"
                for one in trial
            ]
            yield f"the job ended {detail.job.state}: {'; '.join(how)}"


def trouble_with_blame(
    strikes: Sequence[Strike], told: Sequence[Sequence[TrialStatus]]
) -> Iterator[str]:
    """What failed is told as what struck, and never as what did not."""
    struck = {strike.fault for strike in strikes}
    for attempt in (
        attempt for trial in told for attempt in trial if attempt.outcome is Outcome.FAILED
    ):
        if not struck & BLAMED.get(attempt.failure_class, frozenset()):
            yield f"attempt {attempt.attempt} ended as {attempt.failure_class}, which no fault explains: {attempt.message}"


def make_whole(site: Site) -> None:
    """As before the sequence: no fault, and no bad opinion of the host."""
    site.mend()

    def undrain() -> None:
        with site.fleet._stub() as stub:
            stub.UndrainHost(pb.UndrainHostRequest(host=site.host.name), timeout=CALL_S)

    if any(host.host == site.host.name and host.aside for host in steady(site.fleet.hosts)):
        steady(undrain)


def listed(found: Sequence[Course], took_s: float) -> str:
    """A line for each sequence, and their sums."""
    rows = [
        [
            str(sequence.seed), "FAILED" if sequence.trouble else "ok", f"{sequence.took_s:.0f} s", ", ".join(sequence.ends),
            "; ".join(sequence.told),
        ]
        for sequence in found
    ]  # fmt: skip
    good = sum(not sequence.trouble for sequence in found)
    failed = [
        f"seed {sequence.seed}: {'; '.join(sequence.trouble)}"
        for sequence in found
        if sequence.trouble
    ]
    strikes = sum(len(sequence.strikes) for sequence in found)
    count = sum(len(sequence.ends) for sequence in found)
    hits = sum(what != "" for sequence in found for what in sequence.struck)
    sums = f"{good} of {len(found)} sequences hold, {strikes} faults of which {hits} struck something, {count} attempts, {took_s:.0f} s"
    return "\n".join([table(["seed", "", "took", "attempts", "faults"], rows), sums, *failed])
