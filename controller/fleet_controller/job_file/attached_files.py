"""Finds the files that a job's workloads name and reports what is wrong with them. The files are
attached to the job's text or are on disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path as FilePath
from typing import Final

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.workload_files import BadWorkloadFile, read_prompts, read_trace
from fleet_controller.job_file.workload_models import FILE_PREFIX, Requests, Workload
from fleet_controller.yaml.findings import Finding
from fleet_controller.yaml.key_path import KeyPath
from fleet_protos.attachment import MAX_FILES, MAX_PACKED_CHARS, Prompts, Trace, pack, unpack
from fleet_protos.regular_file import open_regular_file
from fleet_protos.trial_types import AttachedFile

TRACE: Final = "trace"
PROMPTS: Final = "prompts"
LARGEST_FILE_BYTES: Final = 64 << 20

AttachedName = str  # KIND:PATH as the job has it

_BEGIN: Final = "# Files of this job as fleetctl packed them; not for editing."
_LINE: Final = re.compile(r'^# file ("(?:[^"\\]|\\.)*") ([0-9a-f]{64}) ([A-Za-z0-9+/]+=*)$')


@dataclass(frozen=True, slots=True)
class FileSources:
    """Says where files may come from: `attached` to the job's text, else relative to `folder`. If
    `folder` is None, only attached files are used.
    """

    attached: Mapping[AttachedName, AttachedFile] = field(default_factory=dict)
    folder: FilePath | None = None

    @staticmethod
    def from_attached(attached: Iterable[AttachedFile], folder: FilePath | None) -> FileSources:
        """Return sources with the attached files by name, and `folder`."""
        return FileSources({file.name: file for file in attached}, folder)


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files of a job that could be read, by name, and the findings about all files that the job
    names.
    """

    files: Mapping[AttachedName, AttachedFile]
    contents: Mapping[AttachedName, Trace | Prompts]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _NamedFileUse:
    """A place in the job that names a file, and how much of a trace that place replays."""

    name: AttachedName
    path: KeyPath
    requests: int = 1 << 30
    end_ms: float = inf


class _FileUnavailable(Exception):
    """A file cannot be used. The arguments are code, message and hint."""


def find_files(parsed: ParsedJob, sources: FileSources) -> NamedFiles:
    """Read each file that a sound part of the job file names. Each file is read once."""
    by_name: dict[AttachedName, list[_NamedFileUse]] = {}
    for wanted in _file_uses(parsed):
        by_name.setdefault(wanted.name, []).append(wanted)
    files: dict[AttachedName, AttachedFile] = {}
    contents: dict[AttachedName, Trace | Prompts] = {}
    findings: list[Finding] = []
    for count, (name, wants) in enumerate(by_name.items()):
        try:
            _check_file_count(count)
            files[name], contents[name] = _load_file(name, sources, wants)
        except _FileUnavailable as missing:
            code, message, hint = missing.args
            findings += [parsed.finding(code, wanted.path, message, hint) for wanted in wants]
    size = sum(len(file.content) for file in files.values())
    if size > MAX_PACKED_CHARS:
        first = max(by_name, key=lambda name: len(files[name].content) if name in files else 0)
        packed_kib, limit_kib = size >> 10, MAX_PACKED_CHARS >> 10
        message = (
            f"the files of this job have {packed_kib} KiB when packed, but the limit is "
            f"{limit_kib} KiB"
        )
        hint = (
            "use less of the largest file: set `duration` or `requests` of a trace, or use fewer "
            "prompts"
        )
        findings.append(parsed.finding("files_too_large", by_name[first][0].path, message, hint))
    return NamedFiles(files, contents, tuple(findings))


def _check_file_count(count: int) -> None:
    """Raise _FileUnavailable if `count` files already reach the limit for one job."""
    if count >= MAX_FILES:
        raise _FileUnavailable(
            "files_too_large",
            f"the job names more than {MAX_FILES} files",
            "split the job into several jobs",
        )


def attached_name(kind: str, written: str) -> AttachedName:
    """Return the name of a file among the files of its job: `KIND:PATH`."""
    return f"{kind}:{written}"


def _file_uses(parsed: ParsedJob) -> Iterator[_NamedFileUse]:
    for name, workload in parsed.job.workloads.items():
        path: KeyPath = ("workloads", name)
        for place, requests in request_kinds(path, workload):
            if (
                requests.prompts is not None
                and requests.prompts.startswith(FILE_PREFIX)
                and parsed.is_sound((*place, "prompts"))
            ):
                yield _NamedFileUse(
                    attached_name(PROMPTS, requests.prompts.removeprefix(FILE_PREFIX)),
                    (*place, "prompts"),
                )
        if workload.trace is not None and parsed.is_sound(
            (*path, "trace"), (*path, "requests"), (*path, "duration"), (*path, "speed")
        ):
            yield _NamedFileUse(
                attached_name(TRACE, workload.trace), (*path, "trace"), *trace_extent(workload)
            )


def request_kinds(path: KeyPath, workload: Workload) -> Iterator[tuple[KeyPath, Requests]]:
    """Yield each kind of requests of the workload at `path`, with its path. The kinds are the parts
    of the workload's mixture, or the workload itself if it has no mixture.
    """
    parts = workload.mix or ()
    yield from (
        (((*path, "mix", index), part) for index, part in enumerate(parts))
        if parts
        else ((path, workload),)
    )


def trace_extent(workload: Workload) -> tuple[int, float]:
    """Return how much of its trace the workload replays: the number of requests, and the end in ms
    of the trace's own time.
    """
    return workload.requests or 1 << 30, (workload.duration or inf) * 1000 * (workload.speed or 1.0)


def _load_file(
    name: AttachedName, sources: FileSources, wants: list[_NamedFileUse]
) -> tuple[AttachedFile, Trace | Prompts]:
    """Return the file and its parsed content. Raises _FileUnavailable."""
    if name in sources.attached:
        try:
            return sources.attached[name], unpack(sources.attached[name].content)
        except ValueError as error:
            raise _FileUnavailable(
                "bad_file",
                str(error),
                "submit the job file itself: `fleetctl submit` packs its files again",
            ) from error
    kind, _, written = name.partition(":")
    if sources.folder is None:
        message = f"the file `{written}` is not attached to the job"
        raise _FileUnavailable(
            "file_not_attached",
            message,
            "submit the job with fleetctl, which attaches its files; the controller opens no files",
        )
    content = _read_file(sources.folder, written)
    try:
        read = read_trace(content, written) if kind == TRACE else read_prompts(content, written)
    except BadWorkloadFile as error:
        raise _FileUnavailable(
            "bad_file", f"`{written}`: {error}", "fix the file, or name another file"
        ) from error
    if isinstance(read, Trace):
        read = read.truncated(
            max(len(read.truncated(wanted.requests, wanted.end_ms).at_ms) for wanted in wants), inf
        )
    try:
        return AttachedFile(name, sha256(content).hexdigest(), pack(read)), read
    except ValueError as error:
        raise _FileUnavailable(
            "files_too_large", f"`{written}` is too large: {error}", "use a part of this file"
        ) from error


def _read_file(folder: FilePath, written: str) -> bytes:
    try:
        path = folder / FilePath(written).expanduser()
        with open_regular_file(_resolve(path, folder, written)) as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        message = f"cannot read `{written}`: {why}"
        raise _FileUnavailable(
            "file_unreadable", message, "paths are relative to the folder of the job file"
        ) from error
    if len(content) > LARGEST_FILE_BYTES:
        raise _FileUnavailable(
            "files_too_large",
            f"`{written}` is larger than {LARGEST_FILE_BYTES >> 20} MiB",
            "use a part of this file",
        )
    return content


def _resolve(path: FilePath, folder: FilePath, written: str) -> FilePath:
    """Return the path without links. Raises _FileUnavailable if a link leads out of the job's
    folder, or for a file that the job names elsewhere, out of the folder of that file.

    Otherwise a job from somebody else could attach a file that its text does not name.
    """
    named = FilePath(os.path.abspath(path))
    inside = named.is_relative_to(os.path.abspath(folder))
    real = path.resolve(strict=True)
    if not real.is_relative_to((folder if inside else named.parent).resolve()):
        whose = "job" if inside else "file"
        raise _FileUnavailable(
            "file_unreadable",
            f"`{written}` is a link to {real}, outside of the {whose}'s folder",
            f"write `{real}` if the job should have that file, or copy it into the job's folder",
        )
    return real


def split_attached_files(text: str) -> tuple[str, tuple[AttachedFile, ...]]:
    """Split a job's text into its own part and the files attached at its end. Lines at the end that
    are not files are dropped.
    """
    own, mark, behind = text.rpartition(f"\n{_BEGIN}\n")
    if not mark:
        return text, ()
    found = (_LINE.match(line) for line in behind.split("\n"))
    return f"{own}\n", tuple(
        AttachedFile(json.loads(match[1]), match[2], match[3]) for match in found if match
    )


def join_attached_files(text: str, files: Iterable[AttachedFile]) -> str:
    """Return the text of a job with its files attached at the end, or the text alone if there are
    none.
    """
    lines = [f"# file {json.dumps(file.name)} {file.sha256} {file.content}" for file in files]
    return "\n".join((text.rstrip("\n"), _BEGIN, *lines, "")) if lines else text
