"""Owns every read and write of the store. Synchronous, one transaction a call: an event and all
that follows from it, or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    RowMapping,
    Table,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from fleet_controller.core.controller_api import StoredRun
from fleet_controller.core.event_rules import may_report
from fleet_controller.core.gang import fold_gang, member_id
from fleet_controller.core.quarantine import HostRecord
from fleet_controller.core.trial_state import NO_SKEW, Attempt, HostClock, Trial, apply_event
from fleet_controller.store import epoch
from fleet_controller.store import tables as t
from fleet_controller.store.database import connect
from fleet_controller.store.rows import host_columns, host_record_of
from fleet_protos import events as ev
from fleet_protos.codec import event_from_json, event_to_json, from_json, to_json
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import ConfigError, NotFound, StoreUnusable
from fleet_protos.trial_types import Artifact, ErrorKind, Outcome, Phase, RunResult, TrialSpec
from fleet_protos.v1 import trial_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as submitted. `planned_s`: the plan's guess of its wall seconds.

    `placement`: JSON of its HostChoice, empty where each trial stays on the host of its plan;
    `joined_s`: see `core.fairness`.
    """

    job_id: str
    name: str
    yaml: str
    file_name: str
    submitted_unix_ns: int
    engine: str
    time_scale: float
    planned_s: float
    cancelled: bool = False
    priority: int = 0
    placement: str = ""
    joined_s: float = 0.0


class Store:
    """Jobs, trials, attempts, events, runs and artifacts. One writer; any number of readers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.controller_epoch = (
            ControllerEpoch()
        )  # of the controller that works with it; without one nobody is kept out

    @classmethod
    def open(cls, address: str, *, read_only: bool = False) -> Store:
        """`address` is a file path or a SQLAlchemy URL. Raises ConfigError, Conflict."""
        return cls(connect(address, read_only=read_only))

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    def take_over(self) -> ControllerEpoch:
        """Begin to work with it: from here on no earlier controller can write to it. Raises
        Conflict.
        """
        with _translate_errors(), self.engine.begin() as connection:
            self.controller_epoch = epoch.begin_epoch(connection)
        return self.controller_epoch

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction. Raises Conflict when the database cannot take it: a full disk, a server
        that is gone, another controller.
        """
        with _translate_errors(), self.engine.begin() as connection:
            if self.controller_epoch.names_controller:
                epoch.require_epoch(connection, self.controller_epoch)
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _translate_errors(), self.engine.connect() as connection:
            yield connection

    # Jobs

    def add_job(self, job: JobRow, specs: Sequence[TrialSpec], request_key: str = "") -> str:
        """Keep a job and its planned trials, in plan order; its id, or that of the job which this
        request made before.
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
            if existing_id := _job_of_request(connection, request_key):
                return existing_id
            connection.execute(insert(t.jobs).values(columns))
            connection.execute(insert(t.trials), rows)
            if request_key:
                connection.execute(
                    insert(t.submissions).values(request_key=request_key, job_id=job.job_id)
                )
        return job.job_id

    def job_of_request(self, request_key: str) -> str:
        """The job that a submit with this key made; empty when there is none."""
        with self._reading() as connection:
            return _job_of_request(connection, request_key)

    def cancel_job(self, job_id: str) -> None:
        """Nothing of it starts any more."""
        with self._writing() as connection:
            connection.execute(
                update(t.jobs).where(t.jobs.c.job_id == job_id).values(cancelled=True)
            )

    def jobs(self) -> list[JobRow]:
        """All jobs, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                select(t.jobs).order_by(t.jobs.c.submitted_unix_ns, t.jobs.c.job_id)
            ).mappings()
            return [JobRow(**row) for row in rows]

    def find_job(self, start: str) -> JobRow:
        """The job with this id or the only one whose id begins so. Raises NotFound, ConfigError."""
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
            raise ConfigError(
                f"{start!r} begins several job ids: {', '.join(job.job_id for job in found)}",
                "write more of it",
            )
        raise NotFound(f"there is no job {start!r}", "`fleetctl ls` lists them")

    def trials(self, job_id: str) -> list[Trial]:
        """The job's trials in plan order, with their attempts."""
        with self._reading() as connection:
            query = (
                select(t.trials.c.spec)
                .where(t.trials.c.job_id == job_id)
                .order_by(t.trials.c.position)
            )
            return _with_attempts(
                connection, job_id, map(_spec_from_json, connection.execute(query).scalars())
            )

    def trial_outlines(self, job_id: str) -> list[Trial]:
        """The same with specs that name trial, job, variant, host and block only: enough for a
        list, and much faster to read.
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
            return _with_attempts(
                connection,
                job_id,
                (TrialSpec(**dict(zip(names, row, strict=True))) for row in rows),
            )

    def find_trial(self, trial_id: str) -> Trial:
        """One trial with its attempts, of all its nodes together, or a node by its own id. Raises
        NotFound when there is none.
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
                _spec_from_json(spec),
                tuple(_attempt_from_row(row) for row in connection.execute(query).mappings()),
            )
        nodes = 0 if found.spec.engine.gang.is_member else found.spec.engine.gang.nodes
        return fold_gang(
            found, [self.find_trial(member_id(trial_id, rank)) for rank in range(1, nodes)]
        )

    # Attempts

    def save_attempt(
        self, trial_ids: Sequence[str], attempt: Attempt, placed: Sequence[TrialSpec] = ()
    ) -> None:
        """Write an attempt of each as it is now: begun by the scheduler, or closed because its
        agent is gone.

        `placed`: trials that have a host from here on, with it.
        """
        with self._writing() as connection:
            for spec in placed:
                columns = {"host": spec.host, "spec": to_json(spec, trial_pb2.TrialSpec())}
                connection.execute(
                    update(t.trials).where(t.trials.c.trial_id == spec.trial_id).values(columns)
                )
            for trial_id in trial_ids:
                _write_attempt(connection, trial_id, attempt)

    # Hosts

    def host_records(self) -> list[HostRecord]:
        """Hosts of which something was decided, by name."""
        with self._reading() as connection:
            return [
                host_record_of(row)
                for row in connection.execute(select(t.hosts).order_by(t.hosts.c.name)).mappings()
            ]

    def save_host(self, record: HostRecord) -> None:
        """What is decided of a host now, in place of what was."""
        with self._writing() as connection:
            connection.execute(delete(t.hosts).where(t.hosts.c.name == record.name))
            connection.execute(insert(t.hosts).values(host_columns(record)))

    # Events

    def last_sequence(self, agent_id: str) -> int:
        """Of the newest stored event of that agent; 0 when it is new."""
        with self._reading() as connection:
            query = select(t.agents.c.last_sequence).where(t.agents.c.agent_id == agent_id)
            return connection.execute(query).scalar() or 0

    def record_event(
        self, agent_id: str, host: str, event: ev.Event, clock: HostClock = NO_SKEW
    ) -> Attempt | None:
        """Store an event once, with the attempt, run and artifacts that follow from it; the attempt
        after it.

        None when it was stored before, when its trial is not of this store (then only the sequence
        number is noted), and when its attempt was never begun here (then the event alone is kept).
        """
        with self._writing() as connection:
            if not _advance_sequence(connection, agent_id, host, event.sequence):
                return None
            known = connection.execute(
                select(t.trials.c.host).where(t.trials.c.trial_id == event.trial_id)
            ).scalar()
            if known is None:
                return None
            before = _read_attempt(connection, event.trial_id, event.attempt)
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
                    "%s tells of attempt %d of %s, which is not its own: dropped",
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
            if (
                not 1 <= event.attempt <= newest + 1
            ):  # one more than is known may be told by a store that was put back to an earlier day
                log.warning(
                    "%s tells of attempt %d of %s, which was never begun",
                    host,
                    event.attempt,
                    event.trial_id,
                )
                return None
            attempt = apply_event(before, event, agent_id, clock, is_newest=event.attempt >= newest)
            _write_attempt(connection, event.trial_id, attempt)
            _write_results(connection, agent_id, event)
            return attempt

    def attempt(self, trial_id: str, number: int) -> Attempt | None:
        """One attempt of a trial or node as it is; None when it was never begun."""
        with self._reading() as connection:
            query = select(t.attempts).where(
                t.attempts.c.trial_id == trial_id, t.attempts.c.attempt == number
            )
            row = connection.execute(query).mappings().first()
            return _attempt_from_row(row) if row else None

    def events(self, trial_id: str, attempt: int) -> list[ev.Event]:
        """All stored events of one attempt, in order."""
        query = (
            select(t.events.c.event)
            .where(t.events.c.trial_id == trial_id, t.events.c.attempt == attempt)
            .order_by(t.events.c.sequence)
        )
        with self._reading() as connection:
            return [event_from_json(text) for text in connection.execute(query).scalars()]

    # Results

    def runs(self, job_id: str) -> list[StoredRun]:
        """Every stored run of a job with the outcome of its attempt, in plan order."""
        query = (
            select(
                t.runs, t.trials.c.variant, t.trials.c.host, t.trials.c.block, t.attempts.c.outcome
            )
            .join(t.trials, t.trials.c.trial_id == t.runs.c.trial_id)
            .join(
                t.attempts,
                (t.attempts.c.trial_id == t.runs.c.trial_id)
                & (t.attempts.c.attempt == t.runs.c.attempt),
            )
            .where(t.trials.c.job_id == job_id)
            .order_by(t.trials.c.position, t.runs.c.attempt, t.runs.c.workload, t.runs.c.run_index)
        )
        with self._reading() as connection:
            return [
                StoredRun(
                    row["trial_id"],
                    row["attempt"],
                    row["variant"],
                    row["host"],
                    row["block"],
                    Outcome(row["outcome"]),
                    from_json(RunResult, row["run"], trial_pb2.RunResult()),
                )
                for row in connection.execute(query).mappings()
            ]

    def missing_artifacts(self, agent_id: str) -> list[Artifact]:
        """Files of that agent that were told of and not fetched."""
        query = (
            select(t.artifacts)
            .where(t.artifacts.c.agent_id == agent_id, t.artifacts.c.fetched.is_(False))
            .order_by(t.artifacts.c.name)
        )
        with self._reading() as connection:
            rows = connection.execute(query).mappings()
            return [Artifact(row["name"], row["sha256"], row["size_bytes"]) for row in rows]

    def mark_artifact_fetched(self, name: str) -> None:
        """The file lies in the controller's artifact folder, its digest checked."""
        with self._writing() as connection:
            connection.execute(
                update(t.artifacts).where(t.artifacts.c.name == name).values(fetched=True)
            )


def _is_first_copy(connection: Connection, table: Table, key: Mapping[str, Any]) -> bool:
    """False, and told in the log, for a row that is there already: an agent's journal that was put
    back tells it under another number.
    """
    row_filter = [table.c[name] == value for name, value in key.items()]
    if connection.execute(select(literal(1)).select_from(table).where(*row_filter)).first() is None:
        return True
    log.warning(
        "%s of %s are told a second time: the first count",
        table.name,
        ", ".join(map(str, key.values())),
    )
    return False


def _job_of_request(connection: Connection, request_key: str) -> str:
    query = select(t.submissions.c.job_id).where(t.submissions.c.request_key == request_key)
    return str(connection.execute(query).scalar() or "") if request_key else ""


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except DataError as error:  # of PostgreSQL: a NUL, or a text that is too long for its column
        raise ConfigError(
            f"the store cannot hold that: {str(error.orig)[:200]!a}",
            "look for odd characters in it",
        ) from error
    except DBAPIError as error:
        if not isinstance(error, OperationalError) and not error.connection_invalidated:
            raise
        raise StoreUnusable(
            f"the store cannot be used: {error.orig}",
            "no event is lost: agents keep what is not stored",
        ) from error


def _spec_from_json(text: str) -> TrialSpec:
    return from_json(TrialSpec, text, trial_pb2.TrialSpec())


def _attempt_from_row(row: RowMapping) -> Attempt:
    values: dict[str, Any] = {
        name: value for name, value in row.items() if name not in ("trial_id", "attempt")
    }
    enums = {
        "phase": Phase(row["phase"]),
        "outcome": Outcome(row["outcome"]),
        "kind": ErrorKind(row["kind"]),
    }
    return Attempt(row["attempt"], **(values | enums))


def _attempt_columns(attempt: Attempt) -> Mapping[str, Any]:
    columns = {
        name: getattr(attempt, name) for name in Attempt.__dataclass_fields__ if name != "number"
    }
    columns["message"] = attempt.message.replace(
        "\0", "\N{REPLACEMENT CHARACTER}"
    )  # PostgreSQL holds no NUL
    return {
        name: int(value) if name in ("phase", "outcome", "kind") else value
        for name, value in columns.items()
    }


def _with_attempts(connection: Connection, job_id: str, specs: Iterable[TrialSpec]) -> list[Trial]:
    found = {spec.trial_id: Trial(spec) for spec in specs}
    query = (
        select(t.attempts)
        .join(t.trials, t.trials.c.trial_id == t.attempts.c.trial_id)
        .where(t.trials.c.job_id == job_id)
    )
    for row in connection.execute(query.order_by(t.attempts.c.attempt)).mappings():
        found[row["trial_id"]] = found[row["trial_id"]].with_attempt(_attempt_from_row(row))
    return list(found.values())


def _read_attempt(connection: Connection, trial_id: str, number: int) -> Attempt:
    query = select(t.attempts).where(
        t.attempts.c.trial_id == trial_id, t.attempts.c.attempt == number
    )
    row = connection.execute(query).mappings().first()
    return _attempt_from_row(row) if row else Attempt(number)


def _write_attempt(connection: Connection, trial_id: str, attempt: Attempt) -> None:
    row_filter = (t.attempts.c.trial_id == trial_id) & (t.attempts.c.attempt == attempt.number)
    columns = _attempt_columns(attempt)
    if not connection.execute(update(t.attempts).where(row_filter).values(columns)).rowcount:
        connection.execute(
            insert(t.attempts).values(trial_id=trial_id, attempt=attempt.number, **columns)
        )


def _advance_sequence(connection: Connection, agent_id: str, host: str, sequence: int) -> bool:
    """Note the sequence number; False when that event, or a later one, was stored before."""
    last = connection.execute(
        select(t.agents.c.last_sequence).where(t.agents.c.agent_id == agent_id)
    ).scalar()
    if last is None:
        connection.execute(
            insert(t.agents).values(agent_id=agent_id, host=host, last_sequence=sequence)
        )
        return True
    if sequence <= last:
        return False
    connection.execute(
        update(t.agents).where(t.agents.c.agent_id == agent_id).values(last_sequence=sequence)
    )
    return True


def _write_results(connection: Connection, agent_id: str, event: ev.Event) -> None:
    artifacts: Iterable[Artifact] = ()
    if isinstance(event.body, ev.RunFinished):
        run = event.body.run
        key = {
            "trial_id": event.trial_id,
            "attempt": event.attempt,
            "workload": run.workload,
            "run_index": run.index,
        }
        if not _is_first_copy(connection, t.runs, key):
            return
        connection.execute(insert(t.runs).values(**key, run=to_json(run, trial_pb2.RunResult())))
        artifacts = [run.artifact] if run.artifact.name else []
    if isinstance(event.body, ev.EvidenceCollected):
        artifacts = event.body.artifacts
    for artifact in artifacts:
        if not _is_first_copy(connection, t.artifacts, {"name": artifact.name}):
            continue
        connection.execute(
            insert(t.artifacts).values(
                name=artifact.name,
                trial_id=event.trial_id,
                attempt=event.attempt,
                agent_id=agent_id,
                sha256=artifact.sha256,
                size_bytes=artifact.size_bytes,
                fetched=False,
            )
        )
