"""The agent's journal: an append-only file of events, on disk before the agent acts on them.

The folder holds `events.jsonl` and `lock`. The file has a header, then events and acknowledgements;
an acknowledgement may carry the epoch of the controller that sent it (the key `lease`). A new or
compacted file is written under another name and renamed, so the header is always complete. One
process has the journal open at a time, and one task uses it, so there are no locks inside.
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
    """The events of one agent.

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
        """Open or create the journal in `folder`.

        Cuts off a torn last record, logs that and describes it in `repaired`. `finished_kept` is
        how many finished attempts the journal remembers. Raises Conflict if another process has the
        journal, JournalDamaged if a record before the last cannot be read, JournalFailed if the
        folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = journal_file.acquire_lock(folder / "lock")
        except OSError as error:
            raise JournalFailed(
                f"the journal in {folder} cannot be opened: {error.strerror}",
                "choose another folder with --state, or make this one writable",
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
        """Created with the journal; a new one means that the earlier events are lost."""
        return self._header.agent_id

    @property
    def last_sequence(self) -> int:
        """Sequence number of the newest event, 0 before the first."""
        return self._header.base_sequence + len(self._offsets)

    @property
    def first_sequence(self) -> int:
        """Sequence number of the oldest event held; `last_sequence` + 1 if there is none."""
        return self._header.base_sequence + 1

    @property
    def acknowledged(self) -> int:
        """Sequence number up to which the controller has stored all events."""
        return self._acknowledged

    @property
    def finished(self) -> frozenset[AttemptKey]:
        """The last finished attempts, including those whose events compaction dropped."""
        return frozenset(self._attempts.finished)

    @property
    def epoch(self) -> ControllerEpoch:
        """Epoch of the controller that the agent obeyed last."""
        return self._epoch

    @property
    def is_broken(self) -> bool:
        """Whether nothing more can be written until the journal is opened again."""
        return bool(self._broken_reason)

    def missing_files(self) -> str:
        """Return which of the open files is no longer at its path, and why; empty if all are.

        If one is not, the journal in this folder cannot be opened again.
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
        """Whether too little disk space is reserved to write the end of another trial."""
        return self._reserve.lacks(self._size)

    def knows(self, trial_id: str, attempt: int) -> bool:
        """Whether the attempt was accepted; knows only the last finished ones."""
        return self._attempts.knows(trial_id, attempt)

    def newest_attempt(self, trial_id: str) -> int:
        """Return the highest attempt of the trial that was accepted; 0 if none is known."""
        return self._attempts.newest_attempt(trial_id)

    def refill_reserve(self) -> None:
        """Reserve disk space for the ends of trials again, if it is used up."""
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
        """Write one event to disk and return it with its sequence number.

        Raises JournalFailed; the event then counts as not written, and the file ends with the
        previous one.
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
        file cannot be opened, JournalDamaged if a record changed after it was written.
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
        """Record that the controller has stored all events up to this one, and compact if worth it.

        A lower number than before does nothing. The record survives the end of this process but
        not always a crash of the machine; the controller then acknowledges again. Raises Conflict
        for a number above the last event, and JournalFailed.
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
        """Drop the stored events before the first event of an active attempt.

        Returns False if there are none. The old file stays if this fails or is interrupted. Raises
        JournalFailed.
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
        """The last event that neither the controller nor the restart of a trial needs."""
        before_active = self._attempts.first_active_sequence(self.last_sequence + 1) - 1
        return min(self._acknowledged, before_active)

    def _offset_after(self, sequence: int) -> int:
        """Return the byte offset of the record that follows this event."""
        following = sequence - self._header.base_sequence
        return self._offsets[following] if following < len(self._offsets) else self._size

    def _read_from(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(self._size - offset)

    def close(self) -> None:
        """Close the file and release the lock; a second call does nothing."""
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

        It is not decoded into an event, since the agent reads the whole journal at its start and
        needs only a few fields.
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
