"""Owns what a dead server's log and exit code come to together. Reads the log by `fleet_knowledge.log`; decides on no retry itself."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fleet_knowledge.failures import FAILURES, kind_of
from fleet_knowledge.log.diagnosis import Diagnosis
from fleet_knowledge.log.reader import LogReader
from fleet_protos.errors import ErrorKind

__all__ = ["Explanation", "explain", "explained", "kind_of", "of_runtime", "read_log"]

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 64 << 20  # of a log too long to be read while a trial waits: its launch, and what led to its end
_TAIL_BYTES = 256 << 20
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_USAGE = 2  # argparse's
_NO_CONTAINER = (125, 126, 127)  # docker-run(1): of the runtime itself, of a program in the image that cannot be run or is not there
_OF_NO_CLASS = ("", "unknown", "launch_crashed")
_SILENT_KILL = "the server got SIGKILL, and not from its agent: the host's out-of-memory killer does that, see dmesg"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a server ended. `cause` is for a person, `cause_line` the line of the log, empty when none tells."""

    failure_class: str
    kind: ErrorKind
    cause: str
    cause_line: str
    rank: str
    hint: str


def explain(log_path: Path, exit_code: int) -> Explanation:
    """The root of a death. `exit_code` is negative for a signal; it decides where the log names no cause. Never raises."""
    return explained(read_log(log_path), exit_code)


def explained(told: Diagnosis, exit_code: int) -> Explanation:
    """The same from a log that was read already."""
    told = of_runtime(told, exit_code)
    if told.failure_class:
        return Explanation(told.failure_class, told.kind, told.cause_line, told.cause_line, told.rank, told.hint)
    failure_class, cause = _silent(exit_code)
    failure = FAILURES.get(failure_class)
    return Explanation(failure_class, kind_of(failure_class), cause, "", "", failure.hint if failure else "")


def of_runtime(told: Diagnosis, exit_code: int) -> Diagnosis:
    """What a log tells when it is that of a container runtime which started no container: its exit code says so, its words vary."""
    if exit_code not in _NO_CONTAINER or told.failure_class not in _OF_NO_CLASS:
        return told
    failure = FAILURES["container_not_started"]
    return replace(told, failure_class=failure.name, hint=failure.hint, avoid=failure.avoid, rank="")


def read_log(log_path: Path, head_bytes: int = _HEAD_BYTES, tail_bytes: int = _TAIL_BYTES) -> Diagnosis:
    """A log, of one that is longer than both together its head and its tail. One that is not there is empty."""
    reader = LogReader()
    try:
        with log_path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size <= head_bytes + tail_bytes:
                _feed(reader, stream, size)
            else:
                _feed(reader, stream, head_bytes)
                reader.feed(b"\n")
                stream.seek(size - tail_bytes)
                stream.readline()  # begins in the middle
                _feed(reader, stream, tail_bytes)
    except OSError:
        pass  # a server that died before it wrote a line has no log
    return reader.finish()


def _silent(exit_code: int) -> tuple[str, str]:
    if exit_code in _KILLED:
        return "killed", _SILENT_KILL
    if exit_code == _USAGE:
        return "argument_error", "the server exited with 2, as for a wrong argument, and its log does not say which"
    if exit_code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL):
        return "scheduler_crashed", f"the server got {signal.Signals(-exit_code).name}"
    return "unknown", ""


def _feed(reader: LogReader, stream: BinaryIO, size: int) -> None:
    while size > 0 and (chunk := stream.read(min(size, _CHUNK_BYTES))):
        reader.feed(chunk)
        size -= len(chunk)
