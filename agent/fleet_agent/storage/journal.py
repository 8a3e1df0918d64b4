"""Keeps the agent's journal: an append-only file of events, on disk before the agent acts on them.

The folder holds `events.jsonl` and `lock`. The file has a header, then events and acknowledgements.
An acknowledgement may carry the epoch of its controller, under the key `lease`. A new or compacted
file is written under another name and then renamed, so the header is always complete. Only one
process opens the journal at a time, and only one task uses it, so the class has no locks inside.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from fleet_agent.storage import journal_file
from fleet_agent.storage.attempt_index import AttemptIndex, AttemptKey
from fleet_agent.storage.journal_file import (
    DiskReserve,
    JournalDamaged,
    JournalFailed,
    JournalHeader,
)
from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.events import Body, Event, TrialAccepted, TrialOver
from fleet_protos.trial_types import Phase

__all__ = ["COMPACT_ABOVE_BYTES", "FINISHED_KEPT", "Journal", "JournalDamaged", "JournalFailed"]

COMPACT_ABOVE_BYTES = 1 << 20
FINISHED_KEPT = 10_000
RESERVE_BYTES = 1 << 20  # many times what the end of a trial writes

_ACKNOWLEDGED = b'{"acknowledged"'

log = logging.getLogger(__name__)


class Journal:
    """Holds the events of one agent.

    Sequence numbers count from 1 without a gap, across restarts and compactions.
    """

    def __init__(
        self,
        folder: Path,
        header: JournalHeader,
        lock: int,
        compact_above_bytes: int,
        finished_kept: int,
    ) -> None:
        self._folder = folder
        self._path = folder / "events.jsonl"
        self._header = header
        self._lock = lock
        self._compact_above_bytes = compact_above_bytes
        self._offsets = array("Q")  # byte offset of each event's record
        self._attempts = AttemptIndex(header.finished, finished_kept)
        self._acknowledged = header.base_sequence
        self._epoch = header.lease
        self._reserve = DiskReserve(RESERVE_BYTES)
        self._size = 0
        self._file = -1
        self._broken_reason = ""
        self.repaired = ""  # a message if a torn last record was cut off on opening

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        compact_above_bytes: int = COMPACT_ABOVE_BYTES,
        finished_kept: int = FINISHED_KEPT,
    ) -> Journal:
        """Open or create the journal in `folder`. It remembers `finished_kept` finished attempts.

        A torn last record is cut off, which is logged and described in `repaired`. Raises Conflict
        if another process has the journal. Raises JournalDamaged if a record before the last cannot
        be read. Raises JournalFailed if the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = journal_file.acquire_lock(folder / "lock")
        except OSError as error:
            raise JournalFailed(
                f"the journal in {folder} cannot be opened: {error.strerror}",
                "make this folder writable, or choose another folder with --state",
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
            # left by an interrupted compaction; the old file is complete
            (folder / "events.jsonl.new").unlink(missing_ok=True)
            if not path.exists():
                journal_file.replace_file(path, JournalHeader(uuid.uuid4().hex).encoded())
            header = JournalHeader.read(path)
            journal = cls(folder, header, lock, compact_above_bytes, finished_kept)
            journal._load()
            journal.refill_reserve()
        except OSError as error:
            raise JournalFailed(
                f"the journal in {folder} cannot be opened: {error.strerror}",
                f"check the disk of {folder}",
            ) from error
        return journal

    @property
    def agent_id(self) -> str:
        """The agent's id. It is created with the journal: a new id means that events were lost."""
        return self._header.agent_id

    @property
    def last_sequence(self) -> int:
        """The sequence number of the newest event, 0 if there has been no event."""
        return self._header.base_sequence + len(self._offsets)

    @property
    def first_sequence(self) -> int:
        """The sequence number of the oldest event in the file, `last_sequence` + 1 if
        it has none.
        """
        return self._header.base_sequence + 1

    @property
    def acknowledged(self) -> int:
        """The sequence number up to which the controller has stored all events."""
        return self._acknowledged

    @property
    def finished(self) -> frozenset[AttemptKey]:
        """The last finished attempts, even if compaction has dropped their events."""
        return frozenset(self._attempts.finished)

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch of the controller that the agent obeyed last."""
        return self._epoch

    @property
    def broken_reason(self) -> str:
        """Why nothing can be written until the journal is opened again. Empty if it can."""
        return self._broken_reason

    def missing_files(self) -> str:
        """Return which open file is no longer at its path, and why. Empty if no file is missing.

        If a file is missing, the journal in this folder cannot be opened again.
        """
        if self._file < 0:
            return ""  # closed
        for path, descriptor in ((self._path, self._file), (self._folder / "lock", self._lock)):
            if fault := journal_file.why_moved(path, descriptor):
                return fault
        is_writable = os.access(self._folder, os.W_OK | os.X_OK)
        return "" if is_writable else f"{self._folder} is no longer writable"

    @property
    def lacks_reserve(self) -> bool:
        """True if too little disk space is reserved to write the end of another trial."""
        return self._reserve.lacks(self._size)

    def knows(self, trial_id: str, attempt: int) -> bool:
        """Return whether the attempt was accepted. Old finished attempts are not known any more."""
        return self._attempts.knows(trial_id, attempt)

    def newest_attempt(self, trial_id: str) -> int:
        """Return the number of the trial's newest accepted attempt. Return 0 if none is known."""
        return self._attempts.newest_attempt(trial_id)

    def refill_reserve(self) -> None:
        """Reserve disk space for the ends of trials again, if the reserve is used up."""
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
        """Write one event to disk. Return the event with its sequence number.

        Raises JournalFailed if this fails. The event then counts as not written, and the previous
        event stays the last in the file.
        """
        event = Event(self.last_sequence + 1, time_unix_ns, trial_id, attempt, cause, phase, body)
        record = journal_file.encode_line(event_to_json(event))
        self._write(record)
        self._sync()
        self._index_record(
            (event.trial_id, event.attempt),
            begins=isinstance(body, TrialAccepted),
            ends=isinstance(body, TrialOver),
        )
        self._size += len(record)
        self.refill_reserve()
        return event

    def record_epoch(self, epoch: ControllerEpoch) -> None:
        """Write to disk which controller the agent obeys from now on. Raises JournalFailed."""
        record = journal_file.encode_record(acknowledged=self._acknowledged, lease=asdict(epoch))
        self._write(record)
        self._sync()
        self._size += len(record)
        self._epoch = epoch

    def events(self, after_sequence: int = 0) -> Iterator[Event]:
        """Yield the events with a sequence number above `after_sequence`, oldest first.

        Events that are appended during the iteration are not included. Raises JournalFailed if the
        file cannot be opened. Raises JournalDamaged if a record changed after it was written.
        """
        first = max(after_sequence - self._header.base_sequence, 0)
        if first >= len(self._offsets):
            return
        with journal_file.open_for_reading(self._path) as file:
            end = self._size
            position = file.seek(self._offsets[first])
            while position < end:
                line = file.readline()
                position += len(line)
                content = journal_file.decode_line(line)
                if content is None:
                    raise journal_file.changed_record(self._path, position)
                if not content.startswith(_ACKNOWLEDGED):
                    yield event_from_json(content.decode())

    def acknowledge(self, up_to: int) -> None:
        """Record that the controller has stored all events up to `up_to`. Compact a large journal.

        A lower number than before does nothing. The record survives the end of this process, but
        not always a crash of the machine; the controller then acknowledges again. Raises Conflict
        if `up_to` is above the last event. Raises JournalFailed if the record cannot be written.
        """
        if up_to > self.last_sequence:
            raise Conflict(
                f"event {up_to} was acknowledged, but the last event is {self.last_sequence}",
                "check that the controller is connected to the right agent",
            )
        if up_to <= self._acknowledged:
            return
        record = journal_file.encode_record(acknowledged=up_to)
        self._write(record)
        self._size += len(record)
        self._acknowledged = up_to
        if self._offset_after(self._droppable) > self._compact_above_bytes:
            try:
                self.compact()
            except JournalFailed as error:  # for example a full disk; compacted another time
                log.warning("%s", error.message)

    def compact(self) -> bool:
        """Drop the events that the controller has stored and that no active attempt needs.

        Return False if there are no such events. The old file stays if this fails or is
        interrupted. Raises JournalFailed.
        """
        base = self._droppable
        if base == self._header.base_sequence:
            return False
        header = JournalHeader(self.agent_id, base, self._attempts.finished, self._epoch)
        acknowledged = b""
        if self._acknowledged > base:
            acknowledged = journal_file.encode_record(acknowledged=self._acknowledged)
        try:
            journal_file.replace_file(
                self._path,
                header.encoded() + self._read_from(self._offset_after(base)) + acknowledged,
            )
        except OSError as error:
            raise journal_file.write_error(self._path, error) from error
        replaced, self._file = self._file, -1  # the next open file may reuse a closed descriptor
        os.close(replaced)
        self._header, self._acknowledged = header, base
        self._offsets = array("Q")
        self._attempts.clear_active()
        self._load()
        self.refill_reserve()
        return True

    @property
    def _droppable(self) -> int:
        """The number of the last event that neither the controller nor an active attempt needs."""
        before_active = self._attempts.first_active_sequence(self.last_sequence + 1) - 1
        return min(self._acknowledged, before_active)

    def _offset_after(self, sequence: int) -> int:
        """Return the byte offset of the record that follows the event `sequence`."""
        following = sequence - self._header.base_sequence
        return self._offsets[following] if following < len(self._offsets) else self._size

    def _read_from(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(self._size - offset)

    def close(self) -> None:
        """Close the file and release the lock. A second call does nothing."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1
        self._broken_reason = "it is closed"

    # Inside

    def _load(self) -> None:
        self._size = 0
        self._reserve.reset()
        for number, line, content in journal_file.read_records(self._path):
            if number > 1:
                self._restore_record(number, content)
            self._size += len(line)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if (surplus := os.fstat(self._file).st_size - self._size) > 0:
            os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            self.repaired = (
                f"{self._path}: an incomplete record of {surplus} bytes at the end was cut off; "
                f"the last event is {self.last_sequence}"
            )
            log.warning("%s", self.repaired)

    def _restore_record(self, number: int, content: bytes) -> None:
        """Index a record from its plain JSON.

        To decode every record into an event would slow down the agent's start, and only a few
        fields are needed.
        """
        record = json.loads(content)
        if content.startswith(_ACKNOWLEDGED):
            self._acknowledged = max(record["acknowledged"], self._header.base_sequence)
            self._epoch = ControllerEpoch(**record["lease"]) if "lease" in record else self._epoch
            return
        if int(record.get("sequence", 0)) != self.last_sequence + 1:
            raise journal_file.damaged_record(
                self._path,
                number,
                f"event {record.get('sequence')} follows event {self.last_sequence}",
            )
        self._index_record(
            (record.get("trial_id", ""), record.get("attempt", 0)),
            begins="trial_accepted" in record,
            ends="trial_over" in record,
        )

    def _index_record(self, key: AttemptKey, *, begins: bool, ends: bool) -> None:
        self._offsets.append(self._size)
        if begins:
            self._attempts.begin(*key, self.last_sequence)
        if ends:
            self._attempts.end(*key)

    def _write(self, record: bytes) -> None:
        if self._broken_reason:
            raise JournalFailed(
                f"{self._path} cannot be written any more: {self._broken_reason}",
                "restart the agent",
            )
        try:
            journal_file.write_all(self._file, record)
        except OSError as error:
            self._cut_partial_record()
            raise journal_file.write_error(self._path, error) from error

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:  # only reading the file again can show what is on disk now
            self._broken_reason = f"the disk failed ({error.strerror})"
            raise journal_file.write_error(self._path, error) from error

    def _cut_partial_record(self) -> None:
        self._reserve.reset()
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken_reason = f"an incomplete record could not be cut off ({error.strerror})"
