"""Writes a checked job as JSON, so that its results can be read under the rules of any later
version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from fleet_controller.core.job import Job
from fleet_controller.job_file.job_loader import load_without_rules


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as its results need it. `notes` says what is not certain about it."""

    job: Job
    notes: Sequence[str] = ()


def resolved_json(job: Job) -> str:
    """Return the job as JSON, with every default filled in. It lacks the attached files and the
    positions of its keys, which only the text has.
    """
    return _adapter().dump_json(replace(job, files=(), places={})).decode()


def read_stored_job(job_id: str, resolved: str, text: str) -> StoredJob:
    """Return the job of this JSON. If there is none, as for jobs that an earlier version stored,
    read the job's text, with the rules of `fleetctl lint` off.

    Raises JobRejected if the text is not a mapping.
    """
    try:
        if resolved:
            return StoredJob(_adapter().validate_json(resolved))
    except ValidationError:  # a later version wrote it
        pass
    job, broken = load_without_rules(text, f"{job_id}.yaml")
    note = (
        f"job {job_id} was stored by another version, without settings that this version can "
        "read: its text was read again, without the rules of lint"
    )
    if broken:
        note += f"; {', '.join(broken)} cannot be read and count as their defaults"
    return StoredJob(job, (note,))


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)
