"""Owns the files that the workloads of a job name: finds them, behind the job's text or on disk, and tells what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path as FilePath
from typing import Final

from fleet_controller.job_file.job_models import Requests, Workload
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.job_file.prompt_kinds import FILE
from fleet_controller.job_file.workload_files import BadSource, read_prompts, read_trace
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import Finding
from fleet_protos.attachment import LARGEST_PACKED, MOST_FILES, Prompts, Trace, pack, unpack
from fleet_protos.trial_types import AttachedFile

TRACE: Final = "trace"
PROMPTS: Final = "prompts"
LARGEST_BYTES: Final = 64 << 20

Name = str  # KIND:PATH as the job has it


@dataclass(frozen=True, slots=True)
class Places:
    """Where files may come from: `attached` to the job's text, else below `folder`; None: from nowhere else."""

    attached: Mapping[Name, AttachedFile] = field(default_factory=dict)
    folder: FilePath | None = None

    @staticmethod
    def of(attached: Iterable[AttachedFile], folder: FilePath | None) -> Places:
        """Both."""
        return Places({file.name: file for file in attached}, folder)


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files of a job that could be read, by name, and what there is to tell about all of them."""

    files: Mapping[Name, AttachedFile]
    contents: Mapping[Name, Trace | Prompts]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A place in the job that names a file, and how much of a trace it takes."""

    name: Name
    path: Path
    requests: int = 1 << 30
    end_ms: float = inf


class _Missing(Exception):
    """A file that cannot be had: code, message, hint."""


def find_files(reading: Reading, places: Places) -> NamedFiles:
    """Every file that a sound part of the job names, read once."""
    by_name: dict[Name, list[_Wanted]] = {}
    for wanted in _all_wanted(reading):
        by_name.setdefault(wanted.name, []).append(wanted)
    files: dict[Name, AttachedFile] = {}
    contents: dict[Name, Trace | Prompts] = {}
    told: list[Finding] = []
    for count, (name, wants) in enumerate(by_name.items()):
        try:
            _refuse_more(count)
            files[name], contents[name] = _found(name, places, wants)
        except _Missing as missing:
            code, message, hint = missing.args
            told += [reading.finding(code, wanted.path, message, hint) for wanted in wants]
    size = sum(len(file.content) for file in files.values())
    if size > LARGEST_PACKED:
        first = max(by_name, key=lambda name: len(files[name].content) if name in files else 0)
        message = f"packed, the files of this job are {size >> 10} KiB, more than the {LARGEST_PACKED >> 10} KiB that travel with it"
        hint = "take a shorter part of the largest: `duration` or `requests` of a trace, fewer prompts"
        told.append(reading.finding("files_too_large", by_name[first][0].path, message, hint))
    return NamedFiles(files, contents, tuple(told))


def _refuse_more(count: int) -> None:
    """Raises _Missing beyond as many files as a job may have."""
    if count >= MOST_FILES:
        raise _Missing("files_too_large", f"the job names more than {MOST_FILES} files", "split it into several jobs")


def name_of(kind: str, written: str) -> Name:
    """How a file is called among those of its job."""
    return f"{kind}:{written}"


def _all_wanted(reading: Reading) -> Iterator[_Wanted]:
    for name, workload in reading.job.workloads.items():
        path: Path = ("workloads", name)
        for place, requests in kinds(path, workload):
            if requests.prompts is not None and requests.prompts.startswith(FILE) and reading.is_sound((*place, "prompts")):
                yield _Wanted(name_of(PROMPTS, requests.prompts.removeprefix(FILE)), (*place, "prompts"))
        if workload.trace is not None and reading.is_sound((*path, "trace"), (*path, "requests"), (*path, "duration"), (*path, "speed")):
            yield _Wanted(name_of(TRACE, workload.trace), (*path, "trace"), *taken(workload))


def kinds(path: Path, workload: Workload) -> Iterator[tuple[Path, Requests]]:
    """The kinds of requests of the workload at `path`, each with its place: the parts of its mixture, else itself."""
    parts = workload.mix or ()
    yield from (((*path, "mix", index), part) for index, part in enumerate(parts)) if parts else ((path, workload),)


def taken(workload: Workload) -> tuple[int, float]:
    """(requests, end in ms of its own time): how much of its trace the workload replays."""
    return workload.requests or 1 << 30, (workload.duration or inf) * 1000 * (workload.speed or 1.0)


def _found(name: Name, places: Places, wants: list[_Wanted]) -> tuple[AttachedFile, Trace | Prompts]:
    """Raises _Missing."""
    if name in places.attached:
        try:
            return places.attached[name], unpack(places.attached[name].content)
        except ValueError as error:
            raise _Missing("bad_file", str(error), "submit the job file itself: `fleetctl submit` packs its files anew") from error
    kind, _, written = name.partition(":")
    if places.folder is None:
        message = f"the file `{written}` did not come with the job"
        raise _Missing("file_not_attached", message, "submit with fleetctl, which reads and attaches it; the controller opens no files")
    content = _read(places.folder, written)
    try:
        read = read_trace(content, written) if kind == TRACE else read_prompts(content, written)
    except BadSource as error:
        raise _Missing("bad_file", f"`{written}`: {error}", "mend the file, or name another") from error
    if isinstance(read, Trace):
        read = read.until(max(len(read.until(wanted.requests, wanted.end_ms).at_ms) for wanted in wants), inf)
    try:
        return AttachedFile(name, sha256(content).hexdigest(), pack(read)), read
    except ValueError as error:
        raise _Missing("files_too_large", f"`{written}` is too large: {error}", "take a part of it") from error


def _read(folder: FilePath, written: str) -> bytes:
    try:
        with (folder / FilePath(written).expanduser()).open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        message = f"cannot read `{written}`: {why}"
        raise _Missing("file_unreadable", message, "a path is taken from the folder of the job file") from error
    if len(content) > LARGEST_BYTES:
        raise _Missing("files_too_large", f"`{written}` is larger than {LARGEST_BYTES >> 20} MiB", "take a part of it")
    return content
