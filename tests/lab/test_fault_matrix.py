"""Each fault in each phase of a trial, on real lab hosts: each run is stored exactly once, no
process is left, the job ends well.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import grpc
import pytest

from fleet_protos.events import Event, ServerLaunched
from fleet_protos.trial_types import Outcome, Phase
from tests.lab import faults
from tests.lab.faults import MATRIX, Fault, Site, Struck, sites
from tests.lab.fleet import LOG_END, STATE, LabFleet
from tests.lab.hosts import wait_until
from tests.lab.lab import Lab
from tests.lab.programs import LabTrouble
from tests.lab.report import chosen, show, table
from tests.lab.trials import (
    LOADS_AT_ONCE,
    HostJournal,
    Late,
    attempts,
    ends,
    phase_at,
    start_loads,
    submit,
    trouble_with,
    wait_over,
)

HOSTS = 7
STARTS_LOAD = 2  # weight of a cell
PHASES = (Phase.LAUNCHING, Phase.WARMING, Phase.MEASURING, Phase.COLLECTING, Phase.STOPPING)
# a fault that came too late for its phase or missed what it is for is tried again; a phase is never
# waited for by time
TRIES = 8
ATTEMPT_S = 150.0
WORKER_S = 30.0
LOG_BYTES = (
    24 << 20
    # what the server's log is made longer by, and how many secrets are then masked in it: collecting it
    # takes a second
)
SECRETS = 128
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: cell
model: {{path: sim/kimi}}
engine:
  kind: simulated
  gpus: 8
  args: {{tp_size: 8}}
  env: {{{env}}}
  stop_timeout: 2s
  simulation: {{time_scale: 4, {simulation}}}
workloads: {{single: {{concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: {tokens}}}}}
measure: {{launches: 1, runs: {{min: 2, max: 2}}, warmup: {warmup}}}
hosts: {{names: [{host}]}}
"""
PLAIN = {"simulation": "ready_after: 0", "tokens": "100", "warmup": "1", "env": ""}
LONG: Mapping[Phase, Mapping[str, str]] = {  # what makes a phase last for seconds
    Phase.LAUNCHING: {"simulation": "ready_after: 2s"},
    Phase.WARMING: {"warmup": "6"},
    Phase.MEASURING: {"tokens": "400"},
    Phase.COLLECTING: {
        "env": ", ".join(f"HF_S{number}: secret://S{number}" for number in range(SECRETS))
    },
    Phase.STOPPING: {"simulation": "ignore_term: true"},
}

# How the attempt before the good one ends, where the fault costs one.
RETRIED: Mapping[Fault, Mapping[Phase, str]] = {
    faults.KILL_AGENT: dict.fromkeys(PHASES[:3], "agent_restarted"),
    faults.POWER_OFF: dict.fromkeys(PHASES[:3], "agent_restarted"),
    faults.KILL_SERVER: dict.fromkeys(PHASES[:3], "killed"),
    faults.KILL_LOAD_TASK: dict.fromkeys(PHASES[1:3], "load_failed"),
}
# What `kill -9 load task` strikes. Where requests are sent: a worker that sends them, whose loss
# costs the attempt. In the other phases no
# worker is in use: it strikes the idle ones that the load process keeps, and their loss costs
# nothing.
LOAD_TASK: Mapping[Phase, str] = {
    **dict.fromkeys(PHASES, faults.IDLE),
    **dict.fromkeys(PHASES[1:3], faults.SENDING),
}
WORKERS = {faults.SENDING: faults.sending_workers, faults.IDLE: faults.idle_workers}
# Where it may cost one or none: what was to be written may just have been, and what died may just
# have been no longer needed.
MAY_BE: Mapping[Fault, frozenset[str]] = {
    faults.DISK_FULL: frozenset({"disk_full", "load_failed", "journal_failed"}),
    faults.KILL_SERVER: frozenset({"killed"}),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault in a phase, and what came of it on `host`; `struck` is what the fault hit, `ends` how
    each attempt ended.
    """

    fault: Fault
    phase: Phase
    host: str = ""
    struck: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    took_s: float = 0.0
    late: int = 0
    trouble: tuple[str, ...] = ()
    log: str = ""

    @property
    def name(self) -> str:
        """As it is listed."""
        return f"{self.fault.name}, {self.phase.name.lower()}"

    @property
    def short(self) -> str:
        """Its place in the table: attempts, seconds and how often the fault missed, or that it
        failed.
        """
        late = f" ({self.late} late)" if self.late else ""
        struck = f" {self.struck[0]}" if self.struck and self.fault is faults.KILL_LOAD_TASK else ""
        return f"{'FAILED' if self.trouble else 'ok'} {len(self.ends)}× {self.took_s:.0f} s{struck}{late}"


CELLS = [Cell(fault, phase) for fault in MATRIX for phase in PHASES]


@pytest.fixture(scope="module")
def fleet(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFleet]:
    opened = LabFleet.open(shared_lab, tmp_path_factory.mktemp("fleet"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def played(fleet: LabFleet, request: pytest.FixtureRequest) -> Mapping[str, Cell]:
    """Those cells by name whose tests were chosen. Faults of the controller strike all hosts: those
    cells have the hosts for themselves.
    """
    began_s = time.monotonic()
    names = chosen(request.session, "name")
    cells = [cell for cell in CELLS if cell.name in names]
    fleet.up(min(HOSTS, len(cells)))
    places = sites(fleet)
    for site in places:
        give_secrets(site)
    start_loads(places)
    of_controller = [cell for cell in cells if cell.fault is faults.KILL_CONTROLLER]
    of_hosts = [cell for cell in cells if cell.fault is not faults.KILL_CONTROLLER]
    found = {
        cell.name: cell
        for turns in (of_controller, of_hosts)
        for cell in play_all(Turns(turns), places)
    }
    show(request.config, told(found, time.monotonic() - began_s))
    return found


@pytest.mark.parametrize("name", [cell.name for cell in CELLS])
def test_each_run_is_stored_once_nothing_is_left_and_the_job_ends_well(
    played: Mapping[str, Cell], name: str
) -> None:
    cell = played[name]
    print(cell.log)
    if cell.trouble:
        pytest.fail("\n".join(cell.trouble), pytrace=False)


def weight(cell: Cell) -> int:
    """The heavier begins the earlier: hosts that are cut for long leave the processors to those
    that start a Ray anew meanwhile.

    The lightest leave a host without a Ray, which nobody then misses.
    """
    if cell.fault in (faults.KILL_AGENT, faults.POWER_OFF):
        return STARTS_LOAD if cell.phase in RETRIED[cell.fault] else 0
    return 3 if cell.fault is faults.CUT_60 else 1


class Turns:
    """Which cell is played next: the heavier the earlier, and few at once that start a Ray anew."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._waiting = sorted(cells, key=lambda cell: -weight(cell))
        self._starting = 0
        self._changed = threading.Condition()

    def take(self) -> Cell | None:
        """The next one, once it may begin; None when all were taken."""
        with self._changed:
            while self._waiting:
                may_begin = (
                    cell
                    for cell in self._waiting
                    if weight(cell) != STARTS_LOAD or self._starting < LOADS_AT_ONCE
                )
                if (cell := next(may_begin, None)) is not None:
                    self._waiting.remove(cell)
                    self._starting += weight(cell) == STARTS_LOAD
                    return cell
                self._changed.wait()
            return None

    def done(self, cell: Cell) -> None:
        """It was played."""
        with self._changed:
            self._starting -= weight(cell) == STARTS_LOAD
            self._changed.notify_all()


def play_all(turns: Turns, places: Sequence[Site]) -> list[Cell]:
    """Each cell on the host that is free first."""

    def work(site: Site) -> list[Cell]:
        done: list[Cell] = []
        while (cell := turns.take()) is not None:
            done.append(play(cell, site))
            turns.done(cell)
        return done

    with ThreadPoolExecutor(len(places)) as pool:
        return [cell for done in pool.map(work, places) for cell in done]


def told(found: Mapping[str, Cell], took_s: float) -> str:
    """The table, and its sums."""
    shown = {name: cell.short for name, cell in found.items()}
    rows = [
        [fault.name, *(shown.get(Cell(fault, phase).name, "") for phase in PHASES)]
        for fault in MATRIX
    ]
    good = sum(not cell.trouble for cell in found.values())
    late = sum(cell.late for cell in found.values())
    attempts = sum(len(cell.ends) for cell in found.values())
    sums = f"{good} of {len(found)} cells hold, {attempts} attempts, {late} faults were late or missed and were repeated, {took_s:.0f} s"
    failed = [
        f"{cell.name} on {cell.host}: {'; '.join(cell.trouble)}"
        for cell in found.values()
        if cell.trouble
    ]
    return "\n".join(
        [table(["fault", *(phase.name.lower() for phase in PHASES)], rows), sums, *failed]
    )


def play(cell: Cell, site: Site) -> Cell:
    """What comes of it; a fault that came too late is tried again with another job."""
    for late in range(TRIES):
        try:
            done = replace(_play(cell, site), late=late)
            break
        except Late as error:
            done = replace(
                cell,
                host=site.host.name,
                late=late + 1,
                trouble=(f"it always came too late or missed: {error}",),
            )
        except (
            LabTrouble,
            grpc.RpcError,
            AssertionError,
            ValueError,
        ):  # such a cell has failed, and the others are played
            done = replace(cell, host=site.host.name, late=late, trouble=(traceback.format_exc(),))
            break
        finally:
            site.mend()
    logs = (
        {site.host.name: site.agent.log(), "controller": site.fleet.controller.log()}
        if done.trouble
        else {}
    )
    return replace(
        done, log="\n".join(f"--- {name}\n{log[-LOG_END:]}" for name, log in logs.items())
    )


def _play(cell: Cell, site: Site) -> Cell:
    fleet, journal, began_s = site.fleet, HostJournal(site), time.monotonic()
    yaml = JOB.format(host=site.host.name, **{**PLAIN, **LONG[cell.phase]})
    job_id = submit(fleet, yaml, f"{cell.name} {time.monotonic_ns()}")
    try:
        struck = strike(cell, site, journal, job_id)
    except Late:
        wait_over(fleet, job_id)
        raise
    hold(cell.fault, journal, job_id)
    cell.fault.mend(site)
    detail = wait_over(fleet, job_id)
    if (
        was := phase_at([event for event in journal.of(job_id) if event.attempt == 1], struck.at_ns)
    ) is not cell.phase:
        raise Late(f"it struck in {was.name}")
    if not is_hit(cell, struck):
        raise Late(f"it struck {', '.join(struck.what) or 'nothing'}")
    [trial] = detail.trials
    told = attempts(fleet, trial)
    trouble = [*trouble_with_ends(cell, ends(told)), *trouble_with(site, journal, job_id)]
    if trouble or trial.outcome is not Outcome.OK:
        trouble += [
            f"the job ended {detail.job.state}",
            *(f"attempt {attempt.attempt}: {attempt.message}" for attempt in told),
        ]
    done = replace(
        cell, host=site.host.name, struck=struck.what, ends=ends(told), trouble=tuple(trouble)
    )
    return replace(done, took_s=time.monotonic() - began_s)


def strike(cell: Cell, site: Site, journal: HostJournal, job_id: str) -> Struck:
    """Wait until the trial is where the fault is to find it, and let it strike. Raises Late."""
    if cell.phase is Phase.COLLECTING:
        event = journal.await_event(job_id, lambda event: event.phase is Phase.WARMING)
        _fill_log(site, event)
    journal.await_event(
        job_id,
        lambda event: (
            event.phase is cell.phase
            and (event.phase is not Phase.LAUNCHING or _is_launched(event))
        ),
    )
    if cell.fault is faults.KILL_LOAD_TASK:
        await_load_task(cell.phase, site, journal, job_id)
    return cell.fault.strike(site)


def await_load_task(phase: Phase, site: Site, journal: HostJournal, job_id: str) -> None:
    """Return when there is a worker of the kind that is to be struck. Raises Late if the phase ends
    before, LabTrouble if none comes.
    """
    wanted = LOAD_TASK[phase]

    def is_there() -> bool:
        if (now := journal.of(job_id)[-1].phase) is not phase:
            raise Late(f"there was no {wanted} until {now.name}")
        return bool(WORKERS[wanted](site.host))

    wait_until(is_there, WORKER_S, f"{job_id} has a {wanted}")


def is_hit(cell: Cell, struck: Struck) -> bool:
    """Return True if the fault struck what it was meant for, and nothing else: a cell in which it
    did not says nothing.
    """
    wanted = {LOAD_TASK[cell.phase]} if cell.fault is faults.KILL_LOAD_TASK else set(struck.what)
    return bool(struck.what) and set(struck.what) == wanted


def _is_launched(event: Event) -> bool:
    return isinstance(event.body, ServerLaunched)


def give_secrets(site: Site) -> None:
    """What the jobs name that are to be masked for a while."""
    path = site.host.path("/root/.config/benchfleet/secrets")
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text("".join(f"S{number}={number:032}\n" for number in range(SECRETS)))


def _fill_log(site: Site, event: Event) -> None:
    """Let the server have said very much, a secret at last."""
    line = b"INFO: a line that a server says again and again\n"
    with site.host.path(f"{STATE}/artifacts/{event.trial_id}/{event.attempt}/server.log").open(
        "ab"
    ) as log:
        log.write(line * (LOG_BYTES // len(line)) + b"%032d\n" % 1)


def hold(fault: Fault, journal: HostJournal, job_id: str) -> None:
    """Return when the fault is to be mended."""
    if fault.outlasts == "job":
        wait_over(journal.site.fleet, job_id)
    if fault.outlasts == "attempt":
        journal.await_event(job_id, lambda event: event.phase is Phase.OVER, ATTEMPT_S)
    threading.Event().wait(fault.lasts_s)


def trouble_with_ends(cell: Cell, told: Sequence[str]) -> Iterator[str]:
    """Whether each attempt ended as the fault lets one expect."""
    wanted = RETRIED.get(cell.fault, {}).get(cell.phase)
    expected: set[tuple[str, ...]] = {(wanted, "ok")} if wanted else {("ok",)}
    if cell.fault is faults.DISK_FULL or (
        cell.fault is faults.KILL_SERVER and cell.phase is Phase.COLLECTING
    ):
        expected |= {(failed, "ok") for failed in MAY_BE[cell.fault]}
    if tuple(told) not in expected:
        yield f"the attempts ended {', '.join(told)}; expected: {' or '.join(', '.join(one) for one in sorted(expected))}"
