"""Converts rows of the store to the controller's values and back. Reads and writes single rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    RowMapping,
    Table,
    insert,
    literal,
    select,
    update,
)

from fleet_controller.core.controller_api import StoredRun
from fleet_controller.core.quarantine import HostFailure, HostRecord
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_controller.store import tables as t
from fleet_protos import events as ev
from fleet_protos.codec import from_json, to_json
from fleet_protos.trial_types import Artifact, ErrorKind, Outcome, Phase, RunResult, TrialSpec
from fleet_protos.v1 import trial_pb2

log = logging.getLogger(__name__)


def host_columns(record: HostRecord) -> dict[str, Any]:
    """Return the row for a host record. NUL characters are replaced, because PostgreSQL cannot
    store them.
    """
    failures = [asdict(failed) for failed in record.failures]
    row = {name: getattr(record, name) for name in HostRecord.__dataclass_fields__} | {
        "failures": json.dumps(failures)
    }
    return {
        name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
        for name, value in row.items()
    }


def host_record_from_row(row: RowMapping) -> HostRecord:
    """Return the host record that a row holds."""
    return HostRecord(
        **{
            **row,
            "failures": tuple(HostFailure(**failed) for failed in json.loads(row["failures"])),
        }
    )


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it was submitted.

    - `planned_s`: the plan's estimate of the job's wall seconds.
    - `placement`: JSON of the job's HostChoice; empty if each trial stays on the host of its plan.
    - `joined_s`: the host time in seconds with which the job began; see `core.fairness`.
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
    resolved: str = ""


def _is_first_copy(connection: Connection, table: Table, key: Mapping[str, Any]) -> bool:
    """Return whether the table has no row with this key yet. If it has one, log a warning.

    After an agent's journal was restored from a backup, the agent reports the same results again
    under new event numbers.
    """
    row_filter = [table.c[name] == value for name, value in key.items()]
    if connection.execute(select(literal(1)).select_from(table).where(*row_filter)).first() is None:
        return True
    log.warning(
        "%s of %s were reported a second time: the first ones count",
        table.name,
        ", ".join(map(str, key.values())),
    )
    return False


def spec_from_json(text: str) -> TrialSpec:
    """Return the trial spec for the JSON of a row."""
    return from_json(TrialSpec, text, trial_pb2.TrialSpec())


def attempt_from_row(row: RowMapping) -> Attempt:
    """Return the attempt that a row holds."""
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
    # PostgreSQL cannot store a NUL.
    columns["message"] = attempt.message.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return {
        name: int(value) if name in ("phase", "outcome", "kind") else value
        for name, value in columns.items()
    }


def with_attempts(connection: Connection, job_id: str, specs: Iterable[TrialSpec]) -> list[Trial]:
    """Return one trial of the job for each of these specs, with all its stored attempts."""
    found = {spec.trial_id: Trial(spec) for spec in specs}
    query = (
        select(t.attempts)
        .join(t.trials, t.trials.c.trial_id == t.attempts.c.trial_id)
        .where(t.trials.c.job_id == job_id)
    )
    for row in connection.execute(query.order_by(t.attempts.c.attempt)).mappings():
        found[row["trial_id"]] = found[row["trial_id"]].with_attempt(attempt_from_row(row))
    return list(found.values())


def read_attempt(connection: Connection, trial_id: str, number: int) -> Attempt:
    """Return a stored attempt, or a new attempt with this number if none is stored."""
    query = select(t.attempts).where(
        t.attempts.c.trial_id == trial_id, t.attempts.c.attempt == number
    )
    row = connection.execute(query).mappings().first()
    return attempt_from_row(row) if row else Attempt(number)


def write_attempt(connection: Connection, trial_id: str, attempt: Attempt) -> None:
    """Insert or update an attempt."""
    row_filter = (t.attempts.c.trial_id == trial_id) & (t.attempts.c.attempt == attempt.number)
    columns = _attempt_columns(attempt)
    if not connection.execute(update(t.attempts).where(row_filter).values(columns)).rowcount:
        connection.execute(
            insert(t.attempts).values(trial_id=trial_id, attempt=attempt.number, **columns)
        )


def advance_sequence(connection: Connection, agent_id: str, host: str, sequence: int) -> bool:
    """Record the sequence number of an agent's event. Return False if this event or a later one was
    stored before.
    """
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


def write_results(connection: Connection, agent_id: str, event: ev.Event) -> None:
    """Insert the run and the artifacts that an event reports."""
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


def read_job_of_request(connection: Connection, request_key: str) -> str:
    """Return the id of the job that was stored with this request key, or an empty text."""
    query = select(t.submissions.c.job_id).where(t.submissions.c.request_key == request_key)
    return str(connection.execute(query).scalar() or "") if request_key else ""


def read_runs(connection: Connection, job_id: str, first: int, last: int) -> list[StoredRun]:
    """Return the stored runs of the job's trials from position `first` to `last`, with the outcome
    of their attempts, in plan order.
    """
    query = (
        select(t.runs, t.trials.c.variant, t.trials.c.host, t.trials.c.block, t.attempts.c.outcome)
        .join(t.trials, t.trials.c.trial_id == t.runs.c.trial_id)
        .join(
            t.attempts,
            (t.attempts.c.trial_id == t.runs.c.trial_id)
            & (t.attempts.c.attempt == t.runs.c.attempt),
        )
        .where(t.trials.c.job_id == job_id, t.trials.c.position.between(first, last))
        .order_by(t.trials.c.position, t.runs.c.attempt, t.runs.c.workload, t.runs.c.run_index)
    )
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
