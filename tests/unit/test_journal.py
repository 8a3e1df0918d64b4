"""Owns the promises of the journal: nothing that was told is lost, whatever kills its writer or
tears its end.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_agent.storage.journal import Journal, JournalDamaged, JournalFailed
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.events import Body, Event, ServerLaunched, TrialAccepted, TrialOver, WarmedUp
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

WRITER = Path(__file__).parents[1] / "fakes" / "journal_writer.py"


def put(journal: Journal, body: Body, trial: str = "t") -> Event:
    return journal.append(
        body, trial, 1, cause=journal.last_sequence, phase=Phase.MEASURING, time_unix_ns=7
    )


def fill(journal: Journal, trial: str = "t", *, over: bool = True) -> None:
    for body in (
        TrialAccepted(TrialSpec(trial_id=trial)),
        WarmedUp("busy", 8, 1.5),
        TrialOver(Outcome.OK),
    ):
        if over or not isinstance(body, TrialOver):
            put(journal, body, trial)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    opened = Journal.open(folder)
    yield opened
    opened.close()


def reopened(folder: Path) -> tuple[list[Event], str, int]:
    """Events, what was repaired, and the sequence that the next event gets."""
    journal = Journal.open(folder)
    try:
        events, repaired = list(journal.events()), journal.repaired
        return events, repaired, put(journal, WarmedUp("next")).sequence
    finally:
        journal.close()


def test_what_was_appended_is_read_back_in_order(journal: Journal) -> None:
    launched = ServerLaunched(
        12,
        12,
        99,
        "http://x",
        ("python", "-m", "x"),
        {"NCCL_ALGO": "Ring", "ü": "line\nbreak"},
        "/log",
    )
    written = [
        put(journal, body)
        for body in (
            TrialAccepted(TrialSpec(trial_id="t", levels={"a": "b"})),
            launched,
            TrialOver(),
        )
    ]
    assert [event.sequence for event in written] == [1, 2, 3]
    assert list(journal.events()) == written
    assert list(journal.events(2)) == written[2:]
    assert list(journal.events(3)) == []
    assert list(journal.events(99)) == []


def test_events_and_identity_outlive_the_process(journal: Journal, folder: Path) -> None:
    fill(journal)
    before, agent_id = list(journal.events()), journal.agent_id
    journal.close()
    again = Journal.open(folder)
    assert (list(again.events()), again.agent_id, again.last_sequence, again.repaired) == (
        before,
        agent_id,
        3,
        "",
    )
    again.close()


def test_each_new_journal_has_its_own_identity(journal: Journal, tmp_path: Path) -> None:
    other = Journal.open(tmp_path / "other")
    assert other.agent_id != journal.agent_id
    other.close()


def test_a_reader_that_is_half_way_sees_what_it_began_with(journal: Journal) -> None:
    fill(journal)
    reading = journal.events()
    seen = [next(reading)]
    put(journal, WarmedUp("late"))
    journal.acknowledge(4)
    assert journal.compact()
    assert [event.sequence for event in (*seen, *reading)] == [1, 2, 3]


def test_a_last_record_torn_at_any_byte_is_cut_off_and_told(
    journal: Journal, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(journal)
    journal.close()
    path = folder / "events.jsonl"
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    caplog.set_level(logging.WARNING)
    for length in range(last + 1, len(whole)):
        path.write_bytes(whole[:length])
        events, repaired, next_sequence = reopened(folder)
        assert [event.sequence for event in events] == [1, 2]
        assert f"an incomplete record of {length - last} bytes" in repaired
        assert caplog.messages[-1] == repaired
        assert next_sequence == 3
        assert reopened(folder)[1] == "", "the repair is whole"
    path.write_bytes(whole[:last])
    assert reopened(folder)[1:] == ("", 3)


def test_a_last_record_with_one_wrong_byte_is_cut_off_and_told(
    journal: Journal, folder: Path
) -> None:
    fill(journal)
    journal.close()
    path = folder / "events.jsonl"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    events, repaired, _ = reopened(folder)
    assert len(events) == 2
    assert "the last event is 2" in repaired


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_damaged_record_before_the_last_is_refused_with_file_and_line(
    journal: Journal, folder: Path, line: int
) -> None:
    fill(journal)
    journal.close()
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"', b"'", 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(JournalDamaged, match=rf"events\.jsonl, line {line}: ") as told:
        Journal.open(folder)
    assert "move the file to another folder" in told.value.hint
    assert path.read_bytes() == b"".join(lines), "it is left as it was found"


def test_a_missing_record_is_refused(journal: Journal, folder: Path) -> None:
    fill(journal)
    journal.close()
    path = folder / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1], lines[3]]))
    with pytest.raises(JournalDamaged, match=r"line 3: .*event 3 follows event 1"):
        Journal.open(folder)


@pytest.mark.parametrize("content", [b"", b"something else\n", b"0000"])
def test_a_file_that_is_no_journal_is_refused(folder: Path, content: bytes) -> None:
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(content)
    with pytest.raises(JournalDamaged, match="line 1"):
        Journal.open(folder)


def test_a_journal_belongs_to_one_process(journal: Journal, folder: Path) -> None:
    with pytest.raises(Conflict, match=f"is in use by the agent with process id {os.getpid()}"):
        Journal.open(folder)
    journal.close()
    Journal.open(folder).close()


def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(folder: Path) -> None:
    with _writer(folder, "append") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(Conflict, match=f"process id {first.pid}"):
            Journal.open(folder)
        first.kill()
    Journal.open(folder).close()


def _writer(folder: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WRITER), str(folder), mode], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("mode", ["append", "compact"])
def test_nothing_told_is_lost_when_the_writer_is_killed(folder: Path, mode: str) -> None:
    told = 0
    for kill_after in (1, 2, 3, 17, 40, 41, 42):
        with _writer(folder, mode) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(kill_after)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        told_lines = [line.split() for line in lines if line.endswith("\n")]
        assert int(told_lines[0][0]) > told
        told = int(told_lines[-1][0])
        journal = Journal.open(folder)
        sequences = [event.sequence for event in journal.events()]
        assert journal.last_sequence >= told
        assert sequences == list(range(journal.first_sequence, journal.last_sequence + 1))
        told = journal.last_sequence
        journal.close()


def test_acknowledged_events_are_dropped_but_for_those_of_a_trial_that_is_not_over(
    folder: Path,
) -> None:
    journal = Journal.open(folder, compact_above_bytes=1)
    fill(journal, "a")
    fill(journal, "b", over=False)
    journal.acknowledge(2)
    assert [event.sequence for event in journal.events()] == [3, 4, 5], (
        "the rest is not acknowledged"
    )
    journal.acknowledge(5)
    assert [event.sequence for event in journal.events()] == [4, 5], (
        "b is not over: its restart needs them"
    )
    assert (journal.acknowledged, journal.last_sequence) == (5, 5)
    put(journal, TrialOver(), "b")
    journal.acknowledge(5)
    assert len(list(journal.events())) == 3, "its end is not acknowledged"
    journal.acknowledge(6)
    assert (list(journal.events()), journal.first_sequence, journal.last_sequence) == ([], 7, 6)
    assert put(journal, WarmedUp()).sequence == 7
    assert [event.sequence for event in journal.events(3)] == [7]
    agent_id = journal.agent_id
    journal.close()
    again = Journal.open(folder)
    assert (again.agent_id, again.last_sequence, again.acknowledged) == (agent_id, 7, 6)
    assert again.finished == {("a", 1), ("b", 1)}
    again.close()


def test_a_journal_whose_host_is_never_idle_does_not_grow_for_ever(folder: Path) -> None:
    """The next trial begins before the end of the one before is acknowledged, so there is always
    one that is not over.
    """
    journal = Journal.open(folder, compact_above_bytes=20_000)
    largest = 0
    fill(journal, "t0", over=False)
    for number in range(1, 400):
        put(journal, TrialOver(Outcome.OK), f"t{number - 1}")
        fill(journal, f"t{number}", over=False)
        journal.acknowledge(journal.last_sequence - 1)
        largest = max(largest, (folder / "events.jsonl").stat().st_size)
    assert journal.last_sequence == 400 * 3 - 1
    journal.close()
    again = Journal.open(folder)
    assert [event.trial_id for event in again.events()][-2:] == ["t399", "t399"]
    assert (again.acknowledged, again.knows("t399", 1), again.knows("t7", 1)) == (1198, True, True)
    again.close()
    assert largest < 60_000


def test_only_so_many_trials_that_are_over_are_remembered(folder: Path) -> None:
    journal = Journal.open(folder, finished_kept=3)
    for number in range(5):
        fill(journal, f"t{number}")
    assert sorted(journal.finished) == [("t2", 1), ("t3", 1), ("t4", 1)]
    assert [journal.newest_attempt(f"t{number}") for number in range(5)] == [0, 0, 1, 1, 1]
    journal.close()


@pytest.mark.parametrize("compacted", [False, True])
def test_whose_orders_count_outlives_the_process_and_a_compaction(
    journal: Journal, folder: Path, compacted: bool
) -> None:
    assert journal.epoch == ControllerEpoch()
    fill(journal)
    journal.record_epoch(ControllerEpoch("store", 4, 1))
    journal.record_epoch(ControllerEpoch("store", 5, 1))
    journal.acknowledge(3)
    assert journal.compact() or not compacted
    journal.close()
    again = Journal.open(folder)
    assert (again.epoch, again.acknowledged, again.last_sequence) == (
        ControllerEpoch("store", 5, 1),
        3,
        3,
    )
    again.close()


def test_a_reader_from_before_leases_takes_the_record_for_an_acknowledgement(
    journal: Journal, folder: Path
) -> None:
    fill(journal)
    journal.acknowledge(2)
    journal.record_epoch(ControllerEpoch("store", 4, 1))
    last = (folder / "events.jsonl").read_bytes().splitlines()[-1][9:]
    assert last.startswith(b'{"acknowledged":2,')


def test_a_small_journal_is_not_compacted(journal: Journal) -> None:
    fill(journal)
    journal.acknowledge(3)
    assert len(list(journal.events())) == 3


def test_acknowledgements_are_remembered_and_repeating_one_is_harmless(
    journal: Journal, folder: Path
) -> None:
    fill(journal)
    journal.acknowledge(2)
    journal.acknowledge(1)
    assert journal.acknowledged == 2
    journal.close()
    again = Journal.open(folder)
    assert again.acknowledged == 2
    again.close()


def test_an_acknowledgement_of_another_agents_events_is_refused(journal: Journal) -> None:
    fill(journal)
    with pytest.raises(Conflict, match="event 4 was acknowledged, but the last event is 3"):
        journal.acknowledge(4)


def test_a_compaction_interrupted_at_any_byte_leaves_the_old_journal(
    journal: Journal, folder: Path
) -> None:
    fill(journal)
    journal.acknowledge(3)
    path = folder / "events.jsonl"
    old = path.read_bytes()
    assert journal.compact()
    journal.close()
    new = path.read_bytes()
    for length in range(len(new) + 1):
        path.write_bytes(old)
        (folder / "events.jsonl.new").write_bytes(new[:length])
        again = Journal.open(folder)
        assert (len(list(again.events())), again.last_sequence, again.acknowledged) == (3, 3, 3)
        assert sorted(os.listdir(folder)) == ["events.jsonl", "lock"]
        again.close()


def test_a_full_disk_is_told_and_the_journal_stays_whole(journal: Journal, folder: Path) -> None:
    """The limit on the size of a file stops a write half-way, as a full disk does."""
    fill(journal)
    size = (folder / "events.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        with pytest.raises(
            JournalFailed, match=r"events\.jsonl: an event could not be written: File too large"
        ):
            put(journal, WarmedUp())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (folder / "events.jsonl").stat().st_size == size
    assert put(journal, WarmedUp("then")).sequence == 4
    journal.close()
    assert [event.sequence for event in reopened(folder)[0]] == [1, 2, 3, 4]


FILL = """
import os
import sys
from pathlib import Path
from fleet_agent.storage.journal import Journal, JournalFailed
from fleet_protos.events import WarmedUp
from fleet_protos.trial_types import Phase

def put(words):
    return journal.append(WarmedUp(words), "t", 1, cause=0, phase=Phase.MEASURING, time_unix_ns=1)

folder = Path(sys.argv[1])
journal = Journal.open(folder)
print(journal.lacks_reserve)
with open(folder / "other", "wb", buffering=0) as other:
    try:
        while other.write(bytes(4096)):
            pass
    except OSError as error:
        print(error.strerror)
told = 0
try:
    while True:
        told += bool(put("busy" * 100))
except JournalFailed as error:
    print(error.message, error.hint, sep="|")
print(told > 1000 if sys.argv[2] == "large" else told < 200, journal.lacks_reserve)
last = journal.last_sequence
journal.close()
journal = Journal.open(folder)
print(journal.last_sequence == last == len(list(journal.events())), repr(journal.repaired))
os.unlink(folder / "other")
journal.refill_reserve()
print(journal.lacks_reserve)
put("again")
"""


def on_a_small_disk(tmp_path: Path, size: str, script: str, *arguments: str) -> list[str]:
    """What a script says whose first argument is a disk of that size, all its own. Skips where
    nobody may mount one.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mine = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run(
        [*mine, f'mount -t tmpfs tmpfs "{disk}"'], capture_output=True, check=False
    ).returncode:
        pytest.skip("this machine lets nobody mount a small disk of his own")
    words = " ".join(arguments)
    command = f'mount -t tmpfs -o size={size} tmpfs "{disk}" && exec "{sys.executable}" -c "$0" "{disk}" {words}'
    return subprocess.run(
        [*mine, command, script], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_full_disk_takes_what_ends_a_trial_and_then_says_what_to_do(tmp_path: Path) -> None:
    """Another program fills the disk: the journal's own space is not for it."""
    told = on_a_small_disk(tmp_path, "4m", FILL, "large")
    full = f"{tmp_path}/disk/events.jsonl: an event could not be written: No space left on device|free space on the disk of {tmp_path}/disk"
    assert told == ["False", "No space left on device", full, "True True", "True ''", "False"]


def test_a_disk_without_room_for_the_reserve_is_told_before_a_trial_begins(tmp_path: Path) -> None:
    told = on_a_small_disk(tmp_path, "64k", FILL, "small")
    assert told[0] == "True"
    assert told[3:] == ["True True", "True ''", "True"]


def test_a_closed_journal_takes_nothing(journal: Journal) -> None:
    journal.close()
    journal.close()
    with pytest.raises(JournalFailed, match="cannot be written any more: it is closed"):
        put(journal, WarmedUp())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(JournalFailed, match="File exists"):
        Journal.open(tmp_path / "file")
