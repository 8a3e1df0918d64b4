"""Reads and writes the store. Every call is synchronous and makes one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import (
    delete,
    func,
    insert,
    select,
    update,
)

from fleet_controller.core.controller_api import StoredRun
from fleet_controller.core.event_rules import may_report
from fleet_controller.core.gang import fold_gang, member_id
from fleet_controller.core.quarantine import HostRecord
from fleet_controller.core.trial_state import NO_SKEW, Attempt, HostClock, Trial, apply_event
from fleet_controller.store import tables as t
from fleet_controller.store.database import connect, store_name
from fleet_controller.store.rows import (
    JobRow,
    advance_sequence,
    attempt_from_row,
    host_columns,
    host_record_from_row,
    read_attempt,
    read_job_of_request,
    read_runs,
    spec_from_json,
    with_attempts,
    write_attempt,
    write_results,
)
from fleet_controller.store.store_session import StoreSession
from fleet_controller.store.writer_lock import StoreLock
from fleet_protos import events as ev
from fleet_protos.codec import event_from_json, event_to_json, to_json
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import ConfigError, NotFound
from fleet_protos.trial_types import Artifact, TrialSpec, is_gang_member
from fleet_protos.v1 import trial_pb2

log = logging.getLogger(__name__)


class Store:
    """The stored jobs, trials, attempts, events, runs and artifacts. There is one writer and any
    number of readers.
    """

    def __init__(self, session: StoreSession) -> None:
        self.engine = session.engine
        self._session = session
        self._reading, self._writing = session.reading, session.writing

    @classmethod
    def open(cls, address: str, *, read_only: bool = False) -> Store:
        """Open the store at a file path or a SQLAlchemy URL. Raises ConfigError, Conflict."""
        return cls(StoreSession(connect(address, read_only=read_only), store_name(address)))

    def close(self) -> None:
        """Close the connections to the database."""
        self.engine.dispose()

    @property
    def controller_epoch(self) -> ControllerEpoch:
        """Return the epoch of this controller. Before `take_over`, it names no controller."""
        return self._session.controller_epoch

    def take_over(self, locks: Sequence[StoreLock] = ()) -> ControllerEpoch:
        """Begin a new epoch; see `StoreSession.take_over`. Raises StoreLost."""
        return self._session.take_over(locks)

    def check(self) -> None:
        """Raise StoreLost if the store is damaged or replaced, or a lock of it is lost. Raise
        StoreUnusable if this is not known now.
        """
        self._session.check()

    # Jobs

    def add_job(self, job: JobRow, specs: Sequence[TrialSpec], request_key: str = "") -> str:
        """Store a job and its planned trials in plan order, and return its id.

        If a job was stored with this request key before, change nothing and return that job's id.
        """
        columns = {name: getattr(job, name) for name in JobRow.__dataclass_fields__}
        rows = [
            {
                "trial_id": spec.trial_id,
                "job_id": job.job_id,
                "position": position,
                "variant": spec.variant,
                "host": spec.host,
                "block": spec.block,
                "spec": to_json(spec, trial_pb2.TrialSpec()),
            }
            for position, spec in enumerate(specs, start=1)
        ]
        with self._writing() as connection:
            if existing_id := read_job_of_request(connection, request_key):
                return existing_id
            connection.execute(insert(t.jobs).values(columns))
            connection.execute(insert(t.trials), rows)
            if request_key:
                connection.execute(
                    insert(t.submissions).values(request_key=request_key, job_id=job.job_id)
                )
        return job.job_id

    def job_of_request(self, request_key: str) -> str:
        """Return the id of the job that was stored with this request key, or an empty text."""
        with self._reading() as connection:
            return read_job_of_request(connection, request_key)

    def cancel_job(self, job_id: str) -> None:
        """Mark the job as cancelled."""
        with self._writing() as connection:
            connection.execute(
                update(t.jobs).where(t.jobs.c.job_id == job_id).values(cancelled=True)
            )

    def jobs(self) -> list[JobRow]:
        """Return all jobs, the oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                select(t.jobs).order_by(t.jobs.c.submitted_unix_ns, t.jobs.c.job_id)
            ).mappings()
            return [JobRow(**row) for row in rows]

    def find_job(self, start: str) -> JobRow:
        """Return the job with the id `start`, or the only job with an id that begins with `start`.
        Raises NotFound if there is no such job. Raises ConfigError if there are several.
        """
        with self._reading() as connection:
            exact = (
                connection.execute(select(t.jobs).where(t.jobs.c.job_id == start))
                .mappings()
                .first()
            )
            if exact:
                return JobRow(**exact)
            query = (
                select(t.jobs).where(t.jobs.c.job_id.startswith(start, autoescape=True)).limit(6)
            )
            found = [JobRow(**row) for row in connection.execute(query).mappings()]
        if len(found) == 1:
            return found[0]
        if found:
            job_ids = ", ".join(job.job_id for job in found)
            raise ConfigError(
                f"several job ids begin with {start!r}: {job_ids}",
                "write more characters of the id",
            )
        raise NotFound(f"there is no job {start!r}", "`fleetctl ls` lists all jobs")

    def trials(self, job_id: str) -> list[Trial]:
        """Return the job's trials in plan order, with their attempts."""
        with self._reading() as connection:
            query = (
                select(t.trials.c.spec)
                .where(t.trials.c.job_id == job_id)
                .order_by(t.trials.c.position)
            )
            return with_attempts(
                connection, job_id, map(spec_from_json, connection.execute(query).scalars())
            )

    def trial_outlines(self, job_id: str) -> list[Trial]:
        """Return the job's trials with incomplete specs that hold only trial, job, variant, host
        and block. This is enough for a list of trials and much faster to read.
        """
        columns = (
            t.trials.c.trial_id,
            t.trials.c.job_id,
            t.trials.c.variant,
            t.trials.c.host,
            t.trials.c.block,
        )
        with self._reading() as connection:
            rows = connection.execute(
                select(*columns).where(t.trials.c.job_id == job_id).order_by(t.trials.c.position)
            )
            names = tuple(rows.keys())
            return with_attempts(
                connection,
                job_id,
                (TrialSpec(**dict(zip(names, row, strict=True))) for row in rows),
            )

    def find_trial(self, trial_id: str) -> Trial:
        """Return the trial with this id, with its attempts and all its nodes. If the id is that of
        a single node, return that node. Raises NotFound.
        """
        with self._reading() as connection:
            spec = connection.execute(
                select(t.trials.c.spec).where(t.trials.c.trial_id == trial_id)
            ).scalar()
            if spec is None:
                raise NotFound(
                    f"there is no trial {trial_id!r}",
                    "`fleetctl show JOB` lists the trials of a job",
                )
            query = (
                select(t.attempts)
                .where(t.attempts.c.trial_id == trial_id)
                .order_by(t.attempts.c.attempt)
            )
            found = Trial(
                spec_from_json(spec),
                tuple(attempt_from_row(row) for row in connection.execute(query).mappings()),
            )
        nodes = 0 if is_gang_member(found.spec.engine.gang) else found.spec.engine.gang.nodes
        return fold_gang(
            found, [self.find_trial(member_id(trial_id, rank)) for rank in range(1, nodes)]
        )

    # Attempts

    def save_attempt(
        self, trial_ids: Sequence[str], attempt: Attempt, placed: Sequence[TrialSpec] = ()
    ) -> None:
        """Store this attempt for each trial. It begins now, or the controller closes it.

        `placed` holds the specs of trials to which a host was assigned.
        """
        with self._writing() as connection:
            for spec in placed:
                columns = {"host": spec.host, "spec": to_json(spec, trial_pb2.TrialSpec())}
                connection.execute(
                    update(t.trials).where(t.trials.c.trial_id == spec.trial_id).values(columns)
                )
            for trial_id in trial_ids:
                write_attempt(connection, trial_id, attempt)

    # Hosts

    def host_records(self) -> list[HostRecord]:
        """Return the record of each host that has one, sorted by name."""
        with self._reading() as connection:
            return [
                host_record_from_row(row)
                for row in connection.execute(select(t.hosts).order_by(t.hosts.c.name)).mappings()
            ]

    def save_host(self, record: HostRecord) -> None:
        """Store the record of a host in place of its earlier record."""
        with self._writing() as connection:
            connection.execute(delete(t.hosts).where(t.hosts.c.name == record.name))
            connection.execute(insert(t.hosts).values(host_columns(record)))

    # Events

    def last_sequence(self, agent_id: str) -> int:
        """Return the number of the newest stored event of this agent, or 0 for a new agent."""
        with self._reading() as connection:
            query = select(t.agents.c.last_sequence).where(t.agents.c.agent_id == agent_id)
            return connection.execute(query).scalar() or 0

    def record_event(
        self, agent_id: str, host: str, event: ev.Event, clock: HostClock = NO_SKEW
    ) -> Attempt | None:
        """Store an event once, with the attempt, run and artifacts that follow from it. Return the
        attempt after the event.

        Return None in three cases:
        - The event was stored before.
        - The event's trial is unknown here or belongs to another agent. Only the event's number is
          stored.
        - The event's attempt was never begun here. Only the event itself is stored.
        """
        with self._writing() as connection:
            if not advance_sequence(connection, agent_id, host, event.sequence):
                return None
            known = connection.execute(
                select(t.trials.c.host).where(t.trials.c.trial_id == event.trial_id)
            ).scalar()
            if known is None:
                return None
            before = read_attempt(connection, event.trial_id, event.attempt)
            newest = (
                connection.execute(
                    select(func.max(t.attempts.c.attempt)).where(
                        t.attempts.c.trial_id == event.trial_id
                    )
                ).scalar()
                or 0
            )
            if not may_report(before, agent_id, host, str(known), newest):
                log.warning(
                    "%s reports on attempt %d of %s, which is not its own: dropped",
                    host,
                    event.attempt,
                    event.trial_id,
                )
                return None
            connection.execute(
                insert(t.events).values(
                    agent_id=agent_id,
                    sequence=event.sequence,
                    trial_id=event.trial_id,
                    attempt=event.attempt,
                    event=event_to_json(event),
                )
            )
            # If the store was restored from a backup, an agent may know one more attempt than it.
            if not 1 <= event.attempt <= newest + 1:
                log.warning(
                    "%s reports on attempt %d of %s, which was never begun",
                    host,
                    event.attempt,
                    event.trial_id,
                )
                return None
            attempt = apply_event(before, event, agent_id, clock, is_newest=event.attempt >= newest)
            write_attempt(connection, event.trial_id, attempt)
            write_results(connection, agent_id, event)
            return attempt

    def attempt(self, trial_id: str, number: int) -> Attempt | None:
        """Return one attempt of a trial or node, or None if it was never begun."""
        with self._reading() as connection:
            query = select(t.attempts).where(
                t.attempts.c.trial_id == trial_id, t.attempts.c.attempt == number
            )
            row = connection.execute(query).mappings().first()
            return attempt_from_row(row) if row else None

    def events(self, trial_id: str, attempt: int) -> list[ev.Event]:
        """Return all stored events of one attempt, in the order of their numbers."""
        query = (
            select(t.events.c.event)
            .where(t.events.c.trial_id == trial_id, t.events.c.attempt == attempt)
            .order_by(t.events.c.sequence)
        )
        with self._reading() as connection:
            return [event_from_json(text) for text in connection.execute(query).scalars()]

    # Results

    def run_counts(self, job_id: str) -> list[tuple[int, int]]:
        """Return the position of each trial that has stored runs, and how many, in plan order."""
        query = (
            select(t.trials.c.position, func.count())
            .join(t.runs, t.trials.c.trial_id == t.runs.c.trial_id)
            .where(t.trials.c.job_id == job_id)
            .group_by(t.trials.c.position)
            .order_by(t.trials.c.position)
        )
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(query)]

    def runs(self, job_id: str, first: int = 0, last: int = 1 << 30) -> list[StoredRun]:
        """Return the stored runs of the job's trials from position `first` to `last`, with the
        outcome of their attempts, in plan order.
        """
        with self._reading() as connection:
            return read_runs(connection, job_id, first, last)

    def missing_artifacts(self, agent_id: str) -> list[Artifact]:
        """Return the files that this agent reported and that were not fetched yet."""
        query = (
            select(t.artifacts)
            .where(t.artifacts.c.agent_id == agent_id, t.artifacts.c.fetched.is_(False))
            .order_by(t.artifacts.c.name)
        )
        with self._reading() as connection:
            rows = connection.execute(query).mappings()
            return [Artifact(row["name"], row["sha256"], row["size_bytes"]) for row in rows]

    def mark_artifact_fetched(self, name: str) -> None:
        """Record that the file is in the artifact folder and that its digest was checked."""
        with self._writing() as connection:
            connection.execute(
                update(t.artifacts).where(t.artifacts.c.name == name).values(fetched=True)
            )
