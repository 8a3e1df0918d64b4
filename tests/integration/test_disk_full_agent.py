"""The disk of a host fills up in each phase of a trial: what was recorded stays, the trial ends and
says why, the next waits for room.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from fleet_knowledge.failure_classes import kind_of
from fleet_protos import events as ev
from fleet_protos.trial_types import ErrorKind, Outcome
from fleet_protos.v1 import agent_pb2
from tests.fakes.small_disk import SmallDisk
from tests.integration.test_agent import DirectClient, assert_server_gone, bodies, over, trial

LIMIT_S = 30.0
ENDS = (
    (ErrorKind.LOAD_FAILED, "load_failed"),
    (kind_of("disk_full"), "disk_full"),
)  # both are tried again


@contextmanager
def agent_on(disk: SmallDisk, folder: Path) -> Iterator[DirectClient]:
    socket = f"unix:{folder}/a.sock"
    flags = ("--state", str(disk.folder), "--listen", socket, "--host-name", "here", "--gpus", "0")
    process = disk.start("-m", "fleet_agent.main", *flags, log=folder / "log")
    line = DirectClient(folder)
    line.channel.close()
    line.channel = grpc.insecure_channel(socket)
    line.stub = type(line.stub)(line.channel)
    try:
        grpc.channel_ready_future(line.channel).result(timeout=LIMIT_S)
        yield line
    finally:
        line.channel.close()
        _end(process)
    assert process.returncode == 0, (folder / "log").read_text()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)


def until(wanted: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not wanted():
        assert time.monotonic() < deadline_s, "it did not come to that in time"
        time.sleep(0.05)  # an agent tells of its disk only when it is asked


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> SmallDisk:
    return SmallDisk(tmp_path_factory.mktemp("d") / "state", "128m")


@pytest.fixture(scope="module")
def line(disk: SmallDisk) -> Iterator[DirectClient]:
    with agent_on(disk, disk.folder.parent) as line:
        line.see(trial())  # Ray starts once
        yield line


@pytest.mark.parametrize(
    "when", [ev.ServerLaunched, ev.ConfigurationProved, ev.RunFinished, ev.EvidenceCollected]
)
def test_a_disk_that_fills_up_ends_the_trial_with_all_that_was_recorded(
    line: DirectClient, disk: SmallDisk, when: type
) -> None:
    spec = trial(tokens=600)
    line.start(spec)
    line.events(spec, when)
    disk.fill()
    events = line.events(spec)
    disk.free()
    sequences = [event.sequence for event in events]
    assert sequences == list(range(sequences[0], sequences[0] + len(events)))
    assert_server_gone(events)
    if over(events).outcome is Outcome.OK:
        assert len(bodies(events, ev.RunFinished)) == 2
    else:
        assert (over(events).kind, over(events).failure_class) in ENDS
        assert re.search(r"No space left on device|the disk of \S+ is full", over(events).message)
    until(lambda: not line.about().takes_no_trials)


def test_a_full_disk_takes_no_new_trial_until_there_is_room(
    line: DirectClient, disk: SmallDisk
) -> None:
    disk.fill(left_bytes=512 << 10)
    spec = trial()
    with pytest.raises(grpc.RpcError) as refused:
        line.start(spec)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    told = f"the disk of {disk.folder} has 0 MiB free, but a trial needs 64 MiB"
    assert told in refused.value.details()
    assert line.about().takes_no_trials == told
    disk.free()
    until(lambda: not line.about().takes_no_trials)
    assert over(line.see(spec)).outcome is Outcome.OK


def test_files_that_the_controller_has_make_room(line: DirectClient, disk: SmallDisk) -> None:
    spec = trial()
    line.see(spec)
    kept = disk.inside / "artifacts" / spec.trial_id / "1"
    assert f"{spec.trial_id}/1" in line.about().kept_attempts
    line.stub.ReleaseAttempt(
        agent_pb2.ReleaseAttemptRequest(trial_id=spec.trial_id, attempt=1), timeout=10
    )
    assert f"{spec.trial_id}/1" not in line.about().kept_attempts
    assert kept.is_dir(), "while there is room they stay for whoever looks on the host"
    disk.fill(left_bytes=512 << 10)
    until(lambda: not kept.exists())
    disk.free()
