"""Loads a job file. Returns a checked job with its findings, or raises an error that lists
everything that is wrong with the file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fleet_controller.core.job import Job
from fleet_controller.job_file.attached_files import (
    FileSources,
    NamedFiles,
    find_files,
    join_attached_files,
    split_attached_files,
)
from fleet_controller.job_file.build_job import build_job
from fleet_controller.job_file.job_checks import check_job, check_variants
from fleet_controller.job_file.job_format import JOB_FORMAT
from fleet_controller.job_file.job_models import JobFile
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.planning.plan_findings import variant_findings
from fleet_controller.planning.variants import make_variants
from fleet_controller.yaml.document import LARGEST_BYTES, Document, read_document
from fleet_controller.yaml.findings import (
    ERROR,
    FileRejected,
    Finding,
    JobRejected,
    has_errors,
    in_order,
)
from fleet_controller.yaml.key_path import KeyPath, dotted
from fleet_controller.yaml.pydantic_errors import pydantic_findings
from fleet_protos.attachment import MAX_PACKED_CHARS
from fleet_protos.errors import ConfigError

# Stand-ins for required values that are missing, so that the rest of a broken file can still be
# checked; `*` matches any one name.
_STAND_INS: tuple[tuple[KeyPath, Any], ...] = (
    (("apiVersion",), "benchfleet/v1"),
    (("kind",), "Job"),
    (("name",), "x"),
    (("model",), {"path": "x"}),
    (("model", "path"), "x"),
    (("engine",), {"kind": "sglang"}),
    (("engine", "kind"), "sglang"),
    (("engine", "container", "image"), "x"),
    (("workloads",), {"x": {"concurrency": 1, "output_tokens": 1}}),
    (("workloads", "*", "sessions", "turns"), 2),
    *(
        (("workloads", "*", "search", key), content)
        for key, content in (("of", "rate"), ("from", 1), ("to", 2))
    ),
    *((("workloads", "*", "shared_prefix", key), 1) for key in ("groups", "tokens")),
    *((("workloads", "*", "input_tokens", "uniform", key), 1) for key in ("min", "max")),
    *(
        (("workloads", "*", "input_tokens", "lognormal", key), 1)
        for key in ("median", "sigma", "max")
    ),
    *((("workloads", "*", "output_tokens", "uniform", key), 1) for key in ("min", "max")),
    *(
        (("workloads", "*", "output_tokens", "lognormal", key), 1)
        for key in ("median", "sigma", "max")
    ),
)
_SINGLE_ARGUMENT_CODES = ("argument_", "reserved_")
_VARIANT_SECTIONS = ("engine", "factors", "exclude", "baseline")


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job that may run, its text, and the findings about it that are not errors."""

    job: Job
    text: str  # with the files that it names packed at its end
    file_name: str
    findings: tuple[Finding, ...]


def load_job_file(path: FilePath) -> LoadedJob:
    """Read and check the file at `path`. Raises JobRejected if its content is wrong. Raises
    ConfigError if it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            "give the path of a job file; `fleetctl init` writes one",
        ) from error
    return load_job(content, str(path), path.parent)


def load_job(text: str | bytes, file_name: str, folder: FilePath | None = None) -> LoadedJob:
    """Check a whole job file. Raises JobRejected with every finding if at least one finding is an
    error.

    Files that the job names are taken from the end of its text, or else read relative to `folder`.
    Without a folder, no file is opened.
    """
    content, parsed, named, found = _read_job(text, file_name, folder)
    found.extend(check_job(parsed))
    found.extend(named.findings)
    job = build_job(parsed.job, parsed.document, named)
    if not has_errors(finding for finding in found if _hides_variants(finding)):
        variants = make_variants(job)
        found.extend(variant_findings(job, variants))
        found.extend(check_variants(parsed, job, variants))
    if has_errors(found):
        raise JobRejected(found)
    return LoadedJob(job, join_attached_files(content, job.files), file_name, in_order(found))


def load_without_rules(text: str, file_name: str) -> tuple[Job, tuple[str, ...]]:
    """Return the job of a text that an earlier version accepted, and the keys whose values cannot
    be read. These have their defaults. No rule is applied to the others.

    Raises JobRejected if the text is not a mapping.
    """
    _, parsed, named, _ = _read_job(text, file_name, None)
    return build_job(parsed.job, parsed.document, named), tuple(sorted(map(dotted, parsed.broken)))


def _read_job(
    text: str | bytes, file_name: str, folder: FilePath | None
) -> tuple[str, ParsedJob, NamedFiles, list[Finding]]:
    """Return the text without its attached files, the readable part of the job, the files that it
    names, and the findings about what cannot be read.
    """
    own, attached = split_attached_files(
        decode_text(text, file_name, most_bytes=LARGEST_BYTES + 2 * MAX_PACKED_CHARS)
    )
    content = decode_text(own, file_name)
    document = read_document(content, file_name, _is_verbatim)
    if isinstance(document.value, dict):
        plain = {key: value for key, value in document.value.items() if not key.startswith("x-")}
        document = replace(document, value=plain)
    elif not document.findings:
        message = "a job file is a mapping (`key: value` lines)"
        raise JobRejected(
            [
                Finding(
                    "not_a_mapping",
                    ERROR,
                    file_name,
                    1,
                    1,
                    "",
                    message,
                    "`fleetctl init` writes one",
                )
            ]
        )
    else:
        raise JobRejected(document.findings)
    parsed, faults = _read_models(document)
    named = find_files(parsed, FileSources.from_attached(attached, folder))
    return content, parsed, named, [*document.findings, *faults]


def _hides_variants(finding: Finding) -> bool:
    """Return True if the error makes it impossible to judge whole variants. After an error in a
    single argument, the other arguments can still be judged.
    """
    return finding.key.startswith(_VARIANT_SECTIONS) and not finding.code.startswith(
        _SINGLE_ARGUMENT_CODES
    )


def decode_text(
    text: str | bytes,
    file: str,
    rejected: type[FileRejected] = JobRejected,
    most_bytes: int = LARGEST_BYTES,
) -> str:
    """Return the text of a file that a user wrote. Raises `rejected` if it is too large or not
    text.
    """

    def refuse(code: str, message: str, hint: str) -> FileRejected:
        return rejected([Finding(code, ERROR, file, 1, 1, "", message, hint)])

    if len(text) > most_bytes:
        raise refuse(
            "too_large",
            f"the file is larger than {LARGEST_BYTES >> 20} MiB",
            "check that this is the right file",
        )
    try:
        content = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise refuse(
            "not_text", f"byte {error.start} is not UTF-8", "save the file as UTF-8"
        ) from error
    if "\0" in content:
        raise refuse(
            "not_text",
            "the file holds NUL bytes: it is not text",
            "check that this is the right file",
        )
    return content


def _is_verbatim(path: KeyPath) -> bool:
    """Return True if the value at `path` stays text even if it looks like a number. This holds for
    variables, labels and a few other values: `NCCL_NTHREADS: 512` is the text `512`.
    """
    match path:
        case (
            ("engine", "env", _)
            | ("factors", _, _, "env", _)
            | ("hosts", "labels", _)
            | ("load", "hosts", "labels", _)
        ):
            return True
        case ("engine", "cpu_binding") | ("engine", "container", "shm_size"):
            return True
    return False


def _read_models(document: Document) -> tuple[ParsedJob, list[Finding]]:
    """Return the models and the findings about broken values. A stand-in replaces each broken
    value.
    """
    value, broken = document.value, set(document.broken)
    found: list[Finding] = []
    for _ in range(6):  # removing one broken part can empty another
        try:
            return ParsedJob(document, JobFile.model_validate(value), frozenset(broken)), found
        except ValidationError as error:
            reported = list(pydantic_findings(error, replace(document, value=value), JOB_FORMAT))
        found = found or [finding for _, finding in reported if finding]
        broken.update(path for path, _ in reported)
        for path, _ in reported:
            value = _without(value, path, path)
    blank = {path[0]: stand_in for path, stand_in in _STAND_INS if len(path) == 1}
    return ParsedJob(document, JobFile.model_validate(blank), frozenset({()})), found


def _without(value: Any, rest: KeyPath, path: KeyPath) -> Any:
    """Return a copy of `value` without the entry at `rest`. A list is removed as a whole. A
    stand-in replaces a required value.
    """
    if not rest or not isinstance(value, dict):
        return value
    key = rest[0]
    if len(rest) > 1 and isinstance(value.get(key), dict):
        return {**value, key: _without(value[key], rest[1:], path)}
    left = {name: entry for name, entry in value.items() if name != key}
    here = path[: len(path) - len(rest) + 1]
    stand_in = next((content for pattern, content in _STAND_INS if _matches(here, pattern)), None)
    return left if stand_in is None else left | {key: stand_in}


def _matches(path: KeyPath, pattern: KeyPath) -> bool:
    return len(path) == len(pattern) and all(
        want in ("*", part) for want, part in zip(pattern, path, strict=True)
    )
