"""Owns the agent's journal: an append-only file of events, on disk before anything follows from
them. Decides nothing about trials.

The folder holds `events.jsonl` and `lock`. First comes the header, then events and
acknowledgements; one of these may carry the lease of the controller that gave it. A new or
compacted file is written beside it and renamed, so the header is always whole. One owner at a time,
no locks inside.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import uuid
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from fleet_agent.storage import journal_file as file_of
from fleet_agent.storage.journal_file import FORMAT, DiskReserve, JournalDamaged
from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict, FleetError
from fleet_protos.events import Body, Event, TrialAccepted, TrialOver
from fleet_protos.trial_types import Phase

__all__ = ["COMPACT_ABOVE_BYTES", "FINISHED_KEPT", "Journal", "JournalDamaged", "JournalFailed"]

COMPACT_ABOVE_BYTES = 1 << 20
FINISHED_KEPT = 10_000
RESERVE_BYTES = 1 << 20  # what the end of a trial writes, many times over

_ACKNOWLEDGED = b'{"acknowledged"'

log = logging.getLogger(__name__)

AttemptKey = tuple[str, int]  # trial id and attempt


class JournalFailed(FleetError):
    """The event could not be written. What was written before is whole, unless the journal says
    that it is closed.
    """


@dataclass(frozen=True, slots=True)
class _Header:
    agent_id: str
    base_sequence: int = 0  # of the last event before this file; sequence numbers never go back
    finished: tuple[AttemptKey, ...] = ()
    lease: ControllerEpoch = field(default_factory=ControllerEpoch)

    def encoded(self) -> bytes:
        return _encode_record(journal=FORMAT, **asdict(self))


class Journal:
    """The events of one agent. Sequence numbers count from 1 without a gap, over restarts and
    compactions.
    """

    def __init__(
        self, folder: Path, header: _Header, lock: int, compact_above_bytes: int, finished_kept: int
    ) -> None:
        self._folder = folder
        self._path = folder / "events.jsonl"
        self._header = header
        self._lock = lock
        self._compact_above_bytes = compact_above_bytes
        self._finished_kept = finished_kept
        self._offsets = array("Q")
        self._active: dict[
            AttemptKey, int
        ] = {}  # trials that are not over → sequence of their first event
        self._finished: dict[AttemptKey, None] = dict.fromkeys(header.finished)
        self._newest: dict[str, int] = {}  # trial id → highest attempt of those
        for trial_id, attempt in header.finished:
            self._newest[trial_id] = max(attempt, self._newest.get(trial_id, 0))
        self._acknowledged = header.base_sequence
        self._epoch = header.lease
        self._reserve = DiskReserve(RESERVE_BYTES)
        self._size = 0
        self._file = -1
        self._broken_reason = ""
        self.repaired = ""  # what was cut off a torn end when it was opened, else empty

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        compact_above_bytes: int = COMPACT_ABOVE_BYTES,
        finished_kept: int = FINISHED_KEPT,
    ) -> Journal:
        """Open or create the journal in `folder`; a torn last record is cut off, logged and told in
        `repaired`.

        Raises Conflict when another process has it, JournalDamaged when a record before the last
        cannot be read, JournalFailed when the folder cannot be written. `remembered`: how many
        trials that are over it knows.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = file_of.acquire_lock(folder / "lock")
        except OSError as error:
            raise JournalFailed(
                f"{folder}: {error.strerror}", "choose another --state, or make this one writable"
            ) from error
        with ExitStack() as on_failure:
            on_failure.callback(os.close, lock)
            journal = cls._open_folder(folder, lock, compact_above_bytes, finished_kept)
            on_failure.pop_all()
        return journal

    @classmethod
    def _open_folder(
        cls, folder: Path, lock: int, compact_above_bytes: int, finished_kept: int
    ) -> Journal:
        try:
            path = folder / "events.jsonl"
            (folder / "events.jsonl.new").unlink(
                missing_ok=True
            )  # of a compaction that was interrupted: the old file is whole
            if not path.exists():
                file_of.replace_file(path, _Header(uuid.uuid4().hex).encoded())
            journal = cls(folder, _read_header(path), lock, compact_above_bytes, finished_kept)
            journal._load()
            journal.refill_reserve()
        except OSError as error:
            raise JournalFailed(
                f"{folder}: {error.strerror}", "look at the disk that holds it"
            ) from error
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
    def finished(self) -> frozenset[AttemptKey]:
        """(trial id, attempt) of trials that are over, also when compaction dropped their events;
        the last 10,000.
        """
        return frozenset(self._finished)

    @property
    def epoch(self) -> ControllerEpoch:
        """Of the controller that was obeyed last."""
        return self._epoch

    @property
    def is_broken(self) -> bool:
        """Nothing more can be written until the file is opened anew."""
        return bool(self._broken_reason)

    def missing_files(self) -> str:
        """What of its files is no longer where it was opened, in words; empty when all is. Nothing
        here can be opened anew then.
        """
        if self._file < 0:
            return ""  # it is closed
        for path, descriptor in ((self._path, self._file), (self._folder / "lock", self._lock)):
            if fault := file_of.why_moved(path, descriptor):
                return fault
        return (
            ""
            if os.access(self._folder, os.W_OK | os.X_OK)
            else f"{self._folder} cannot be written any more"
        )

    @property
    def lacks_reserve(self) -> bool:
        """The disk is full, or was: the end of another trial might not be written."""
        return self._reserve.lacks(self._size)

    def knows(self, trial_id: str, attempt: int) -> bool:
        """This attempt was accepted; of those that are over, the last 10,000."""
        return (trial_id, attempt) in self._active or (trial_id, attempt) in self._finished

    def newest_attempt(self, trial_id: str) -> int:
        """The highest attempt of the trial that was accepted; 0 when none is known."""
        return self._newest.get(trial_id, 0)

    def refill_reserve(self) -> None:
        """Take space for the ends of trials again, when it is lacking and there is room."""
        if self._file >= 0:
            self._reserve.refill(self._file, self._size)

    def append(
        self,
        body: Body,
        trial_id: str,
        attempt: int,
        *,
        cause: int,
        phase: Phase,
        time_unix_ns: int,
    ) -> Event:
        """Write one event and return it with its sequence number, once it is on disk.

        Raises JournalFailed: the event counts as not written, and the file ends with the one
        before.
        """
        event = Event(self.last_sequence + 1, time_unix_ns, trial_id, attempt, cause, phase, body)
        record = file_of.encode_line(event_to_json(event))
        self._write(record)
        self._sync()
        self._index_record(
            event.trial_id,
            event.attempt,
            begins=isinstance(body, TrialAccepted),
            ends=isinstance(body, TrialOver),
        )
        self._size += len(record)
        self.refill_reserve()
        return event

    def record_epoch(self, epoch: ControllerEpoch) -> None:
        """Remember whose orders count from here on, on disk before it returns. Raises
        JournalFailed.
        """
        record = _encode_record(acknowledged=self._acknowledged, lease=asdict(epoch))
        self._write(record)
        self._sync()
        self._size += len(record)
        self._epoch = epoch

    def events(self, after_sequence: int = 0) -> Iterator[Event]:
        """Each event held with a sequence above `after_sequence`, oldest first, as they are when
        iteration begins. Raises JournalFailed.
        """
        first = max(after_sequence - self._header.base_sequence, 0)
        if first >= len(self._offsets):
            return
        with self._open_for_reading() as file:
            end = self._size
            file.seek(self._offsets[first])
            while file.tell() < end:
                content = file_of.decode_line(file.readline())
                if content is None:
                    raise file_of.changed_record(self._path, file.tell())
                if not content.startswith(_ACKNOWLEDGED):
                    yield event_from_json(content.decode())

    def _open_for_reading(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise JournalFailed(
                f"{self._path} cannot be read: {error.strerror}", f"look at {self._folder}"
            ) from error

    def acknowledge(self, up_to: int) -> None:
        """The controller has stored every event up to this one; compacts when that is worth it. A
        lower number than before is harmless.

        Survives the death of this process, not always that of the machine: then the controller
        acknowledges again. Raises Conflict for a number that was never given, and JournalFailed.
        """
        if up_to > self.last_sequence:
            raise Conflict(
                f"event {up_to} was acknowledged, the last one is {self.last_sequence}",
                "the controller follows another agent",
            )
        if up_to <= self._acknowledged:
            return
        record = _encode_record(acknowledged=up_to)
        self._write(record)
        self._size += len(record)
        self._acknowledged = up_to
        if self._offset_after(self._droppable) > self._compact_above_bytes:
            try:
                self.compact()
            except (
                JournalFailed
            ) as error:  # a full disk, say: the file stays as it is and is compacted another time
                log.warning("%s", error.message)

    def compact(self) -> bool:
        """Drop the events that the controller has, up to the first of a trial that is not over;
        False when there are none.

        Interrupted or failed, the old file stays. Raises JournalFailed.
        """
        base = self._droppable
        if base == self._header.base_sequence:
            return False
        header = _Header(self.agent_id, base, tuple(self._finished), self._epoch)
        acknowledged = (
            _encode_record(acknowledged=self._acknowledged) if self._acknowledged > base else b""
        )
        try:
            file_of.replace_file(
                self._path,
                header.encoded() + self._read_from(self._offset_after(base)) + acknowledged,
            )
        except OSError as error:
            raise self._write_error(error) from error
        replaced, self._file = self._file, -1  # a number that is closed may be another file's next
        os.close(replaced)
        self._header, self._acknowledged = header, base
        self._offsets = array("Q")
        self._active.clear()
        self._load()
        self.refill_reserve()
        return True

    @property
    def _droppable(self) -> int:
        """The last event that neither the controller nor the restart of a trial needs."""
        return min(
            self._acknowledged, *(first - 1 for first in self._active.values()), self.last_sequence
        )

    def _offset_after(self, sequence: int) -> int:
        """Where the record begins that follows this event."""
        following = sequence - self._header.base_sequence
        return self._offsets[following] if following < len(self._offsets) else self._size

    def _read_from(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(self._size - offset)

    def close(self) -> None:
        """Let another process have it; harmless twice."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1
        self._broken_reason = "it is closed"

    # Inside

    def _load(self) -> None:
        self._size = 0
        self._reserve.reset()
        for number, line, content in file_of.read_records(self._path):
            if number > 1:
                self._restore_record(number, content)
            self._size += len(line)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if (surplus := os.fstat(self._file).st_size - self._size) > 0:
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            last = f"event {self.last_sequence} is the last"
            self.repaired = (
                f"{self._path}: a torn record of {surplus} bytes at the end was cut off; {last}"
            )
            log.warning("%s", self.repaired)

    def _restore_record(self, number: int, content: bytes) -> None:
        """Note a record from its plain JSON: an agent reads its whole journal at its start, and
        needs few fields of it.
        """
        record = json.loads(content)
        if content.startswith(_ACKNOWLEDGED):
            self._acknowledged = max(record["acknowledged"], self._header.base_sequence)
            self._epoch = ControllerEpoch(**record["lease"]) if "lease" in record else self._epoch
            return
        if int(record.get("sequence", 0)) != self.last_sequence + 1:
            raise file_of.damaged_record(
                self._path,
                number,
                f"event {record.get('sequence')} follows event {self.last_sequence}",
            )
        self._index_record(
            record.get("trial_id", ""),
            record.get("attempt", 0),
            begins="trial_accepted" in record,
            ends="trial_over" in record,
        )

    def _index_record(self, trial_id: str, attempt: int, *, begins: bool, ends: bool) -> None:
        key = (trial_id, attempt)
        self._offsets.append(self._size)
        if begins:
            self._active[key] = self.last_sequence
            self._newest[trial_id] = max(attempt, self._newest.get(trial_id, 0))
        if ends:
            self._active.pop(key, None)
            self._finished[key] = None
            if len(self._finished) > self._finished_kept:
                self._forget_finished(next(iter(self._finished)))

    def _forget_finished(self, key: AttemptKey) -> None:
        del self._finished[key]
        if self._newest.get(key[0]) == key[1]:
            del self._newest[key[0]]

    def _write(self, record: bytes) -> None:
        if self._broken_reason:
            raise JournalFailed(
                f"{self._path}: nothing more is written, since {self._broken_reason}",
                "restart the agent",
            )
        try:
            file_of.write_all(self._file, record)
        except OSError as error:
            self._cut_partial_record()
            raise self._write_error(error) from error

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except (
            OSError
        ) as error:  # what is on disk is unknown from here on: only reading it anew can tell
            self._broken_reason = f"the disk failed ({error.strerror})"
            raise self._write_error(error) from error

    def _cut_partial_record(self) -> None:
        self._reserve.reset()
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken_reason = f"half a record could not be taken back ({error.strerror})"

    def _write_error(self, error: OSError) -> JournalFailed:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = (
            f"free space on the disk of {self._folder}"
            if full
            else f"look at the disk of {self._folder}"
        )
        return JournalFailed(f"{self._path}: an event could not be written: {error.strerror}", hint)


def _encode_record(**fields: object) -> bytes:
    return file_of.encode_line(json.dumps(fields, separators=(",", ":")))


def _read_header(path: Path) -> _Header:
    header = file_of.read_header(path)
    finished = tuple((str(trial), int(attempt)) for trial, attempt in header["finished"])
    return _Header(
        str(header["agent_id"]),
        int(header["base_sequence"]),
        finished,
        ControllerEpoch(**header.get("lease", {})),
    )
