"""Owns the form of the journal's file: lines with checksums, replacement in one step, its lock,
space kept beyond its end. Knows no event.

A line is a CRC-32 in eight hex digits, a space, and JSON.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet_protos.errors import Conflict, FleetError

FORMAT = "benchfleet-journal/1"
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of linux/falloc.h: the blocks are the file's, its length stays
_MOVE_AWAY = (
    "move the file away and keep it for a report; the agent then starts with a new identity, "
    "and servers of unfinished trials must be ended by hand"
)


class JournalDamaged(FleetError):
    """A record in the middle of the journal cannot be read. What follows it cannot be trusted, so
    the agent must not guess.
    """


def encode_line(text: str) -> bytes:
    """The line of a JSON text."""
    content = text.encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def decode_line(raw_line: bytes) -> bytes | None:
    """The JSON of a line, None when it is torn or damaged."""
    if len(raw_line) < 10 or not raw_line.endswith(b"\n"):
        return None
    content = raw_line[9:-1]
    return content if raw_line[:9] == b"%08x " % zlib.crc32(content) else None


def read_header(path: Path) -> dict[str, Any]:
    """The first record. Raises JournalDamaged when it is none of this format."""
    with path.open("rb") as file:
        content = decode_line(file.readline())
    header: dict[str, Any] = (
        json.loads(content) if content else {}
    )  # it was renamed into place whole, so it is never torn
    if header.get("journal") != FORMAT:
        raise damaged_record(path, 1, f"no header of {FORMAT}")
    return header


def read_records(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """(line number, line, its JSON) of each whole record. Raises JournalDamaged unless only the
    last one is not whole.
    """
    with path.open("rb") as file:
        for number, raw_line in enumerate(file, start=1):
            content = decode_line(raw_line)
            if content is not None:
                yield number, raw_line, content
            elif file.read(1):
                raise damaged_record(path, number, "its checksum is wrong")


def damaged_record(path: Path, number: int, why: str) -> JournalDamaged:
    """The error about the record in that line."""
    return JournalDamaged(f"{path}, line {number}: the record cannot be read: {why}", _MOVE_AWAY)


def changed_record(path: Path, offset: int) -> JournalDamaged:
    """The error about a record that was whole when it was written."""
    return JournalDamaged(
        f"{path}: the record before byte {offset} changed after it was written", _MOVE_AWAY
    )


def why_moved(path: Path, descriptor: int) -> str:
    """Why `path` no longer leads to the open file, in words; empty when it does."""
    try:
        there, ours = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return f"{path} was removed"
    except OSError as error:
        return f"{path} cannot be reached any more ({error.strerror})"
    return (
        ""
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        else f"{path} was replaced by another file"
    )


def write_all(descriptor: int, record: bytes) -> None:
    """Every byte. Raises OSError."""
    while record:
        record = record[os.write(descriptor, record) :]


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`: after a crash at any point there is the old file or the new one.
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
        new.unlink(missing_ok=True)  # half a file on a full disk is in the way of what matters
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def acquire_lock(path: Path) -> int:
    """An open descriptor that holds the lock. Raises Conflict when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(
            f"{path.parent} belongs to the agent that runs as process {holder}",
            "end it, or choose another --state",
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


class DiskReserve:
    """Disk space that belongs to a file beyond its end, so that its last records can be written
    when the disk is full.
    """

    def __init__(self, least_bytes: int) -> None:
        self._least_bytes = least_bytes
        self._up_to = 0
        self._possible = True  # False on a file system without fallocate(2)

    def lacks(self, size: int) -> bool:
        """True when less than half of the reserve is left beyond `size`."""
        return self._possible and self._up_to - size < self._least_bytes // 2

    def refill(self, descriptor: int, size: int) -> None:
        """Take the space again when it is used up; a full disk leaves what there is."""
        if not self.lacks(size):
            return
        try:
            _fallocate(descriptor, _KEEP_SIZE, size, self._least_bytes)
        except OSError as error:
            self._possible = error.errno in _FULL
            return
        self._up_to = size + self._least_bytes

    def reset(self) -> None:
        """The file is another one, or was cut: nothing is known of space beyond its end."""
        self._up_to = 0


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2), which Python only offers without its mode. Raises OSError."""
    call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).fallocate
    if call(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
