"""Reads and writes the journal's file: lines with checksums, the header, the lock and the reserve.

A line consists of a CRC-32 in eight hex digits, a space, and JSON.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fleet_agent.storage.attempt_index import AttemptKey
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict, FleetError

FORMAT = "benchfleet-journal/1"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of linux/falloc.h: allocates blocks, keeps the file's length
_MOVE_AWAY = (
    "move the file to another folder and keep it for a report; the agent then starts with a new "
    "identity, and you must end the servers of unfinished trials by hand"
)


class JournalDamaged(FleetError):
    """Raised if a record before the last cannot be read. The records after it are not trusted."""


class JournalFailed(FleetError):
    """Raised if the journal cannot be opened, read or written. Its earlier events are intact."""


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The first record of the journal's file. The field names are the JSON keys of the record."""

    agent_id: str
    base_sequence: int = 0  # sequence number of the last event before this file
    finished: tuple[AttemptKey, ...] = ()
    lease: ControllerEpoch = field(default_factory=ControllerEpoch)

    @classmethod
    def read(cls, path: Path) -> JournalHeader:
        """Read the header of the file. Raises JournalDamaged or OSError."""
        header = read_header(path)
        finished = tuple((str(trial), int(attempt)) for trial, attempt in header["finished"])
        epoch = ControllerEpoch(**header.get("lease", {}))
        return cls(str(header["agent_id"]), int(header["base_sequence"]), finished, epoch)

    def encoded(self) -> bytes:
        """Return the header as a line of the file."""
        return encode_record(journal=FORMAT, **asdict(self))


def encode_record(**fields: object) -> bytes:
    """Return a record as a line of the file. The arguments are its JSON keys and values."""
    return encode_line(json.dumps(fields, separators=(",", ":")))


def encode_line(text: str) -> bytes:
    """Return a JSON text as a line of the file, with its checksum."""
    content = text.encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def decode_line(raw_line: bytes) -> bytes | None:
    """Return the JSON of a line. Return None if the line is incomplete or damaged."""
    if len(raw_line) < 10 or not raw_line.endswith(b"\n"):
        return None
    content = raw_line[9:-1]
    return content if raw_line[:9] == b"%08x " % zlib.crc32(content) else None


def read_header(path: Path) -> dict[str, Any]:
    """Return the header as JSON. Raises JournalDamaged if the file has no header of `FORMAT`."""
    with path.open("rb") as file:
        content = decode_line(file.readline())
    # never incomplete, since the file was renamed to its path with the header in it
    header: dict[str, Any] = json.loads(content) if content else {}
    if header.get("journal") != FORMAT:
        raise damaged_record(path, 1, f"the line is not a header of {FORMAT}")
    return header


def read_records(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (line number, line, JSON of the line) for each complete record.

    An incomplete last record is skipped. Raises JournalDamaged if an earlier record cannot be read.
    """
    with path.open("rb") as file:
        for number, raw_line in enumerate(file, start=1):
            content = decode_line(raw_line)
            if content is not None:
                yield number, raw_line, content
            elif file.read(1):
                raise damaged_record(path, number, "its checksum is wrong")


def damaged_record(path: Path, number: int, reason: str) -> JournalDamaged:
    """Return the error for a record that cannot be read."""
    return JournalDamaged(f"{path}, line {number}: the record cannot be read: {reason}", _MOVE_AWAY)


def changed_record(path: Path, offset: int) -> JournalDamaged:
    """Return the error for a record that changed after it was written."""
    return JournalDamaged(
        f"{path}: the record before byte {offset} changed after it was written", _MOVE_AWAY
    )


def write_error(path: Path, error: OSError) -> JournalFailed:
    """Return the error for an event that could not be written."""
    hint = f"{'free space on' if error.errno in _FULL else 'check'} the disk of {path.parent}"
    return JournalFailed(f"{path}: an event could not be written: {error.strerror}", hint)


def open_for_reading(path: Path) -> BinaryIO:
    """Open the file for reading. Raises JournalFailed if it cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise JournalFailed(
            f"{path} cannot be read: {error.strerror}", f"check {path.parent}"
        ) from error


def why_moved(path: Path, descriptor: int) -> str:
    """Return why `path` no longer leads to the file that is open as `descriptor`. Empty if `path`
    still leads to it.
    """
    try:
        there, ours = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return f"{path} was removed"
    except OSError as error:
        return f"{path} can no longer be read ({error.strerror})"
    return (
        ""
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        else f"{path} was replaced by another file"
    )


def write_all(descriptor: int, record: bytes) -> None:
    """Write every byte of the record. Raises OSError."""
    while record:
        record = record[os.write(descriptor, record) :]


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one step: after a crash, the old or the new file is there, and
    it is complete.

    Raises OSError.
    """
    new = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)  # half a file would only take space on a full disk
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def acquire_lock(path: Path) -> int:
    """Lock the file at `path`, and return the open descriptor that holds the lock. Raises Conflict
    if another process holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(
            f"{path.parent} is in use by the agent with process id {holder}",
            "stop that agent, or choose another folder with --state",
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


class DiskReserve:
    """Keeps disk space allocated beyond the end of a file, so that its last records can be written
    even when the disk is full.
    """

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._up_to = 0
        self._possible = True  # False on a file system without fallocate(2)

    def lacks(self, size: int) -> bool:
        """Return whether less than half of the reserve remains beyond `size` bytes."""
        return self._possible and self._up_to - size < self._least_bytes // 2

    def refill(self, descriptor: int, size: int) -> None:
        """Allocate the reserve again if it is used up. Does nothing on a full disk."""
        if not self.lacks(size):
            return
        try:
            _fallocate(descriptor, _KEEP_SIZE, size, self._least_bytes)
        except OSError as error:
            self._possible = error.errno in _FULL
            return
        self._up_to = size + self._least_bytes

    def reset(self) -> None:
        """Forget the reserve, because the file was replaced or cut."""
        self._up_to = 0


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2) by ctypes, because Python's os.posix_fallocate has no mode argument. Raises
    OSError.
    """
    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).fallocate
    if call(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
