"""Owns the agent's journal: an append-only file of events, on disk before anything follows from them. Decides nothing about trials.

The folder holds `events.jsonl` and `lock`. Each line is a CRC-32 in eight hex digits, a space, and JSON: first the header, then events and
acknowledgements. A new or compacted file is written beside it and renamed, so the header is always whole. One owner at a time, no locks
inside.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import uuid
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.errors import Conflict, FleetError
from fleet_protos.events import Body, Event, TrialAccepted, TrialOver
from fleet_protos.trial import Phase

FORMAT = "benchfleet-journal/1"
COMPACT_ABOVE_BYTES = 1 << 20
FINISHED_KEPT = 10_000

_ACKNOWLEDGED = b'{"acknowledged"'
_MOVE_AWAY = (
    "move the file away and keep it for a report; the agent then starts with a new identity, "
    "and servers of unfinished trials must be ended by hand"
)

log = logging.getLogger(__name__)

Key = tuple[str, int]  # trial id and attempt


class JournalDamaged(FleetError):
    """A record in the middle of the journal cannot be read. What follows it cannot be trusted, so the agent must not guess."""


class JournalFailed(FleetError):
    """The event could not be written. What was written before is whole, unless the journal says that it is closed."""


@dataclass(frozen=True, slots=True)
class _Header:
    agent_id: str
    base_sequence: int = 0  # of the last event before this file; sequence numbers never go back
    finished: tuple[Key, ...] = ()

    def encoded(self) -> bytes:
        told = {"journal": FORMAT, "agent_id": self.agent_id, "base_sequence": self.base_sequence, "finished": self.finished}
        return _line(json.dumps(told, separators=(",", ":")))


class Journal:
    """The events of one agent. Sequence numbers count from 1 without a gap, over restarts and compactions."""

    def __init__(self, folder: Path, header: _Header, lock: int, compact_above_bytes: int) -> None:
        self._folder = folder
        self._path = folder / "events.jsonl"
        self._header = header
        self._lock = lock
        self._compact_above_bytes = compact_above_bytes
        self._offsets = array("Q")
        self._open_trials: set[Key] = set()
        self._finished: dict[Key, None] = dict.fromkeys(header.finished)
        self._acknowledged = header.base_sequence
        self._size = 0
        self._file = -1
        self._broken = ""
        self.repaired = ""  # what was cut off a torn end when it was opened, else empty

    @classmethod
    def open(cls, folder: Path, *, compact_above_bytes: int = COMPACT_ABOVE_BYTES) -> Journal:
        """Open or create the journal in `folder`; a torn last record is cut off, logged and told in `repaired`.

        Raises Conflict when another process has it, JournalDamaged when a record before the last cannot be read, JournalFailed when the
        folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = _locked(folder / "lock")
        except OSError as error:
            raise JournalFailed(f"{folder}: {error.strerror}", "choose another --state, or make this one writable") from error
        try:
            path = folder / "events.jsonl"
            (folder / "events.jsonl.new").unlink(missing_ok=True)  # of a compaction that was interrupted: the old file is whole
            if not path.exists():
                _replace(path, _Header(uuid.uuid4().hex).encoded())
            journal = cls(folder, _read_header(path), lock, compact_above_bytes)
            journal._load()
        except OSError as error:
            os.close(lock)
            raise JournalFailed(f"{folder}: {error.strerror}", "look at the disk that holds it") from error
        except BaseException:
            os.close(lock)
            raise
        return journal

    @property
    def agent_id(self) -> str:
        """Made with the journal; another one means that what this agent told before is gone."""
        return self._header.agent_id

    @property
    def last_sequence(self) -> int:
        """Of the newest event, 0 before the first."""
        return self._header.base_sequence + len(self._offsets)

    @property
    def first_sequence(self) -> int:
        """Of the oldest event still held; `last_sequence` + 1 when none is."""
        return self._header.base_sequence + 1

    @property
    def acknowledged(self) -> int:
        """Up to here the controller has stored everything."""
        return self._acknowledged

    @property
    def finished(self) -> frozenset[Key]:
        """(trial id, attempt) of trials that are over, also when compaction dropped their events; the last 10,000."""
        return frozenset(self._finished)

    def append(self, body: Body, trial_id: str, attempt: int, *, cause: int, phase: Phase, time_unix_ns: int) -> Event:
        """Write one event and return it with its sequence number, once it is on disk.

        Raises JournalFailed: the event counts as not written, and the file ends with the one before.
        """
        event = Event(self.last_sequence + 1, time_unix_ns, trial_id, attempt, cause, phase, body)
        record = _line(event_to_json(event))
        self._write(record)
        self._sync()
        self._note(event.trial_id, event.attempt, begins=isinstance(body, TrialAccepted), ends=isinstance(body, TrialOver))
        self._size += len(record)
        return event

    def events(self, after_sequence: int = 0) -> Iterator[Event]:
        """Each event held with a sequence above `after_sequence`, oldest first, as they are when iteration begins."""
        first = max(after_sequence - self._header.base_sequence, 0)
        if first >= len(self._offsets):
            return
        with self._path.open("rb") as file:
            end = self._size
            file.seek(self._offsets[first])
            while file.tell() < end:
                content = _content(file.readline())
                if content is None:
                    raise JournalDamaged(f"{self._path}: the record before byte {file.tell()} changed after it was written", _MOVE_AWAY)
                if not content.startswith(_ACKNOWLEDGED):
                    yield event_from_json(content.decode())

    def acknowledge(self, up_to: int) -> None:
        """The controller has stored every event up to this one; compacts when nothing else is open. A lower number than before is harmless.

        Survives the death of this process, not always that of the machine: then the controller acknowledges again. Raises Conflict for a
        number that was never given, and JournalFailed.
        """
        if up_to > self.last_sequence:
            raise Conflict(f"event {up_to} was acknowledged, the last one is {self.last_sequence}", "the controller follows another agent")
        if up_to <= self._acknowledged:
            return
        record = _line(json.dumps({"acknowledged": up_to}))
        self._write(record)
        self._size += len(record)
        self._acknowledged = up_to
        if self._size > self._compact_above_bytes:
            self.compact()

    def compact(self) -> bool:
        """Drop all events when the controller has them and no trial is open; False when that is not so. Interrupted, the old file stays."""
        if self._open_trials or self._acknowledged < self.last_sequence or not self._offsets:
            return False
        header = _Header(self.agent_id, self.last_sequence, tuple(self._finished)[-FINISHED_KEPT:])
        try:
            _replace(self._path, header.encoded())
        except OSError as error:
            raise self._failure(error) from error
        os.close(self._file)
        self._header = header
        self._offsets = array("Q")
        self._load()
        return True

    def close(self) -> None:
        """Let another process have it; harmless twice."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1
        self._broken = "it is closed"

    # Inside

    def _load(self) -> None:
        self._size = 0
        for number, line, content in _records(self._path):
            if number > 1:
                self._restore(number, content)
            self._size += len(line)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if (surplus := os.fstat(self._file).st_size - self._size) > 0:
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            last = f"event {self.last_sequence} is the last"
            self.repaired = f"{self._path}: a torn record of {surplus} bytes at the end was cut off; {last}"
            log.warning("%s", self.repaired)

    def _restore(self, number: int, content: bytes) -> None:
        """Note a record from its plain JSON: an agent reads its whole journal at its start, and needs few fields of it."""
        told = json.loads(content)
        if content.startswith(_ACKNOWLEDGED):
            self._acknowledged = told["acknowledged"]
            return
        if int(told.get("sequence", 0)) != self.last_sequence + 1:
            raise _damaged(self._path, number, f"event {told.get('sequence')} follows event {self.last_sequence}")
        self._note(told.get("trial_id", ""), told.get("attempt", 0), begins="trial_accepted" in told, ends="trial_over" in told)

    def _note(self, trial_id: str, attempt: int, *, begins: bool, ends: bool) -> None:
        key = (trial_id, attempt)
        self._offsets.append(self._size)
        if begins:
            self._open_trials.add(key)
        if ends:
            self._open_trials.discard(key)
            self._finished[key] = None

    def _write(self, record: bytes) -> None:
        if self._broken:
            raise JournalFailed(f"{self._path}: nothing more is written, since {self._broken}", "restart the agent")
        try:
            _write_all(self._file, record)
        except OSError as error:
            self._take_back()
            raise self._failure(error) from error

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:  # what is on disk is unknown from here on: only reading it anew can tell
            self._broken = f"the disk failed ({error.strerror})"
            raise self._failure(error) from error

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken = f"half a record could not be taken back ({error.strerror})"

    def _failure(self, error: OSError) -> JournalFailed:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = f"free space on the disk of {self._folder}" if full else f"look at the disk of {self._folder}"
        return JournalFailed(f"{self._path}: an event could not be written: {error.strerror}", hint)


def _line(text: str) -> bytes:
    content = text.encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _content(line: bytes) -> bytes | None:
    """The JSON of a whole line, None when it is torn or damaged."""
    if len(line) < 10 or not line.endswith(b"\n"):
        return None
    content = line[9:-1]
    return content if line[:9] == b"%08x " % zlib.crc32(content) else None


def _read_header(path: Path) -> _Header:
    with path.open("rb") as file:
        content = _content(file.readline())
    told: dict[str, Any] = json.loads(content) if content else {}  # it was renamed into place whole, so it is never torn
    if told.get("journal") != FORMAT:
        raise _damaged(path, 1, f"no header of {FORMAT}")
    finished = tuple((str(trial), int(attempt)) for trial, attempt in told["finished"])
    return _Header(str(told["agent_id"]), int(told["base_sequence"]), finished)


def _records(path: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """(line number, line, its JSON) of each whole record. Raises JournalDamaged unless only the last one is not whole."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content = _content(line)
            if content is not None:
                yield number, line, content
            elif file.read(1):
                raise _damaged(path, number, "its checksum is wrong")


def _write_all(descriptor: int, record: bytes) -> None:
    while record:
        record = record[os.write(descriptor, record) :]


def _replace(path: Path, content: bytes) -> None:
    """Put `content` at `path`: after a crash at any point there is the old file or the new one."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _locked(path: Path) -> int:
    """An open descriptor that holds the lock. Raises Conflict when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(f"{path.parent} belongs to the agent that runs as process {holder}", "end it, or choose another --state") from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def _damaged(path: Path, number: int, why: str) -> JournalDamaged:
    return JournalDamaged(f"{path}, line {number}: the record cannot be read: {why}", _MOVE_AWAY)
