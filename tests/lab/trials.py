"""Owns one trial on one lab host as tests of faults see it: its journal read from outside the host,
and what must hold of its job.

Strikes no fault and decides no order: it looks, waits and compares.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event as Pause
from typing import TypeVar

import grpc

from fleet_agent.storage.journal_file import decode_line
from fleet_controller.core.controller_api import JobDetail, TrialStatus
from fleet_protos.codec import event_from_json, from_proto
from fleet_protos.events import Event, RunFinished, TrialAccepted
from fleet_protos.trial_types import Outcome, Phase
from fleet_protos.v1 import controller_pb2 as pb
from tests.lab.faults import Site
from tests.lab.fleet import CALL_S, STATE, LabFleet, orphans_of, servers_of
from tests.lab.programs import LabTrouble

JOURNAL = f"{STATE}/journal/events.jsonl"
LOOK_S = 0.01
PAUSE_S = 0.1
SETTLE_S = 30.0
OVER_S = 240.0
T = TypeVar("T")


LOADS_AT_ONCE = 2  # Ray gives its own start 30 s, and one takes ten seconds of a processor
FIRST_JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: first
model: {{path: sim/kimi}}
engine: {{kind: simulated, gpus: 8, args: {{tp_size: 8}}, simulation: {{time_scale: 100}}}}
workloads: {{single: {{concurrency: 1, requests: 1, prompts: builtin:chat, output_tokens: 10}}}}
measure: {{launches: 1, runs: {{min: 1, max: 1}}, warmup: 1}}
hosts: {{names: [{host}]}}
"""


def start_loads(places: Sequence[Site]) -> None:
    """Let each host run a short job, so that its load process is up; a few at a time."""

    def begin(site: Site) -> None:
        wait_over(
            site.fleet,
            submit(site.fleet, FIRST_JOB.format(host=site.host.name), f"first {site.host.name}"),
        )

    with ThreadPoolExecutor(LOADS_AT_ONCE) as pool:
        list(pool.map(begin, places))


class Late(Exception):
    """The trial went on before the fault could strike in the phase that was wanted."""


@dataclass(slots=True)
class HostJournal:
    """The journal of a host's agent, read on from where the last look ended; also while the agent
    or the host is dead.
    """

    site: Site
    seen: list[Event] = field(default_factory=list)
    _file: int = 0
    _offset: int = 0

    def look(self) -> list[Event]:
        """All events so far, the newest last; what compaction drops stays seen."""
        path = self.site.host.path(JOURNAL)
        try:
            with path.open("rb") as file:
                about = path.stat()
                if about.st_ino != self._file or about.st_size < self._offset:
                    self._file, self._offset = about.st_ino, 0
                file.seek(self._offset)
                for line in file:
                    content = decode_line(line)
                    if content is None:
                        break
                    self._offset += len(line)
                    self._take(content)
        except OSError:  # a host between two boots
            pass
        return self.seen

    def _take(self, content: bytes) -> None:
        if b'"sequence"' in content:
            event = event_from_json(content.decode())
            if not self.seen or event.sequence > self.seen[-1].sequence:
                self.seen.append(event)

    def of(self, job_id: str) -> list[Event]:
        """The events of one job's trials."""
        return [event for event in self.look() if event.trial_id.startswith(f"{job_id}-")]

    def await_event(
        self, job_id: str, wanted: Callable[[Event], bool], timeout_s: float = 60.0
    ) -> Event:
        """The newest event once it is as wanted. Raises Late when the trial has gone on meanwhile,
        LabTrouble after the timeout.
        """
        deadline, done = time.monotonic() + timeout_s, 0
        while time.monotonic() < deadline:
            events = self.of(job_id)
            found = next((event for event in events[done:] if wanted(event)), None)
            done = len(events)
            if found is not None and events[-1].phase is found.phase:
                return events[-1]
            if found is not None or (events and events[-1].phase is Phase.OVER):
                raise Late(f"{job_id} is in {events[-1].phase.name}")
            time.sleep(LOOK_S)
        last = str(self.of(job_id)[-1:])[:300]
        raise LabTrouble(
            f"{job_id}: not within {timeout_s:g} s; the journal of {self.site.host.name} ends with {last}"
        )


def phase_at(events: list[Event], at_ns: int) -> Phase:
    """Where the trial was at that moment, by the stamps of its events."""
    return next(
        (event.phase for event in reversed(events) if event.time_unix_ns <= at_ns),
        Phase.UNSPECIFIED,
    )


def steady(call: Callable[[], T], timeout_s: float = 60.0) -> T:
    """The answer of a controller that may be away for a while."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if (
                error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                or time.monotonic() > deadline
            ):
                raise
            Pause().wait(PAUSE_S)


def submit(fleet: LabFleet, yaml: str, key: str) -> str:
    """The id of a job that is submitted once, however often the controller dies meanwhile."""

    def asked() -> str:
        with fleet._stub() as stub:
            request = pb.SubmitJobRequest(yaml=yaml, file_name=f"{key}.yaml", request_key=key)
            return stub.SubmitJob(request, timeout=CALL_S).job_id

    return steady(asked)


def attempts(fleet: LabFleet, trial: TrialStatus) -> list[TrialStatus]:
    """Each attempt of a trial, as it ended."""

    def asked(number: int) -> TrialStatus:
        with fleet._stub() as stub:
            answer = stub.GetTrial(
                pb.GetTrialRequest(trial_id=trial.trial_id, attempt=number), timeout=CALL_S
            )
            return from_proto(TrialStatus, answer.status)

    return [steady(lambda number=number: asked(number)) for number in range(1, trial.attempt + 1)]  # type: ignore[misc]


def wait_over(fleet: LabFleet, job_id: str) -> JobDetail:
    """The job when it is over, whatever becomes of the controller meanwhile."""
    for _ in fleet.changes(job_id, OVER_S):
        pass
    return steady(lambda: fleet.job(job_id))


def trouble_with(site: Site, journal: HostJournal, job_id: str) -> list[str]:
    """What does not hold of a job that is over, and of its host; empty when all does. Files and
    processes get a while to arrive and end.
    """
    deadline = time.monotonic() + SETTLE_S
    while (found := list(_trouble(site, journal, job_id))) and time.monotonic() < deadline:
        Pause().wait(PAUSE_S)
    return found


def _trouble(site: Site, journal: HostJournal, job_id: str) -> Iterator[str]:
    yield from steady(lambda: site.fleet.trouble_with_runs(job_id))
    yield from _trouble_with_told(site.fleet, journal, job_id)
    yield from (f"orphan: {process.argv[:4]}" for process in orphans_of(site.host))
    yield from (f"a server still runs: {process.argv[:8]}" for process in servers_of(site.host))
    left = [path.name for path in site.host.path("/tmp").glob("bf-*")]
    if len(left) > 1:
        yield f"folders of Rays that have ended: {left}"


def _trouble_with_told(fleet: LabFleet, journal: HostJournal, job_id: str) -> Iterator[str]:
    """The runs that the host's journal has, of all attempts, are those that are stored, each once."""
    events = journal.of(job_id)
    if not any(isinstance(event.body, TrialAccepted) for event in events):
        yield "the journal tells of no trial of this job"
    finished = [(event, event.body.run) for event in events if isinstance(event.body, RunFinished)]
    told = Counter(
        (event.trial_id, event.attempt, run.workload, run.index) for event, run in finished
    )
    runs = steady(lambda: fleet.results(job_id)).runs
    stored = Counter((run.trial_id, run.attempt, run.run.workload, run.run.index) for run in runs)
    for key in told.keys() | stored.keys():
        if told[key] != 1 or stored[key] != 1:
            yield f"run {key} is {told[key]} times in the journal and {stored[key]} times in the store"


def ends(told: list[TrialStatus]) -> tuple[str, ...]:
    """How each attempt ended: `ok`, or the class of its failure."""
    return tuple(
        "ok"
        if attempt.outcome is Outcome.OK
        else attempt.failure_class or attempt.outcome.name.lower()
        for attempt in told
    )
