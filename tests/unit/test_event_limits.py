"""What a server writes and shows of itself has an end: its log, its folder, the events that quote
it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_agent.core.event_limits import LARGEST_EVENT_BYTES, limit_event_size
from fleet_agent.server.log_follower import LogFollower
from fleet_agent.storage import trial_artifacts
from fleet_agent.storage.log_limits import (
    enforce_limits,
    read_data_chunks,
    trim_log,
    used_bytes,
)
from fleet_agent.storage.secrets import Secrets
from fleet_protos import events as ev
from fleet_protos.codec import event_from_json, event_to_json
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Artifact, EngineSpec, TrialSpec

LIMIT = 1 << 20


def written(path: Path, lines: int, word: str = "line") -> int:
    """Appends as a server does; the descriptor stays that of the caller."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(
        descriptor, b"".join(b"%s %08d\n" % (word.encode(), number) for number in range(lines))
    )
    return descriptor


def test_a_log_above_its_limit_keeps_its_beginning_its_end_and_a_word_about_the_rest(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    descriptor = written(log, 300_000)
    dropped = trim_log(log, LIMIT)
    os.write(descriptor, b"the server writes on\n")
    os.close(descriptor)
    text = b"".join(read_data_chunks(log)).replace(b"\0", b"").decode()
    assert text.startswith("line 00000000\n")
    assert f"[benchfleet: {dropped} bytes are left out here" in text
    assert text.endswith("line 00299999\nthe server writes on\n")
    assert used_bytes(tmp_path) <= LIMIT


def test_a_log_is_bounded_again_and_again(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    for word in ("one", "two", "three"):
        os.close(written(log, 300_000, word))
        trim_log(log, LIMIT)
        assert used_bytes(tmp_path) <= LIMIT
    assert b"".join(read_data_chunks(log)).count(b"[benchfleet:") == 1


async def test_too_many_files_are_reported_as_that_and_not_as_bytes(tmp_path: Path) -> None:
    for number in range(101):
        os.close(os.open(tmp_path / str(number), os.O_CREAT, 0o600))
    message = await enforce_limits(tmp_path / "server.log", check_every_s=0.001, most_files=100)
    assert message == f"the trial has more than 100 files in {tmp_path}, which is the limit"


def test_a_log_below_its_limit_is_left_as_it_is(tmp_path: Path) -> None:
    os.close(written(tmp_path / "log", 1000))
    before = (tmp_path / "log").read_bytes()
    assert (trim_log(tmp_path / "log", LIMIT), (tmp_path / "log").read_bytes()) == (0, before)


def test_a_link_in_place_of_a_log_is_neither_bounded_nor_collected(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "1"
    folder.mkdir(parents=True)
    secret = tmp_path / "key"
    os.close(written(secret, 300_000))
    for name in ("server.log", "nccl-x.log", "metrics.txt"):
        (folder / name).symlink_to(secret)
    assert trim_log(folder / "server.log", LIMIT) == 0
    assert trial_artifacts.collect_artifacts(folder, tmp_path) == ()
    assert sorted(path.name for path in folder.iterdir()) == [
        "metrics.txt",
        "nccl-x.log",
        "server.log",
    ]


def test_who_follows_a_log_keeps_his_place_when_its_middle_goes(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    os.close(written(log, 300_000))
    trim_log(log, LIMIT)
    follower = LogFollower(log)
    follower.read()
    descriptor = written(log, 0)
    os.write(
        descriptor,
        b"RuntimeError: CUDA error: out of memory\ntorch.OutOfMemoryError: CUDA out of memory.\n",
    )
    os.close(descriptor)
    assert follower.diagnose().failure_class


def test_what_is_collected_of_a_bounded_log_is_as_small_as_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "1"
    folder.mkdir(parents=True)
    os.close(written(folder / "server.log", 300_000))
    trim_log(folder / "server.log", LIMIT)
    (found,) = trial_artifacts.collect_artifacts(folder, tmp_path, Secrets({"S": "line 00000007"}))
    content = (folder / "server-log.txt").read_bytes()
    assert (found.name, found.size_bytes) == ("t/1/server-log.txt", len(content))
    assert len(content) <= LIMIT
    assert (b"\0" in content, b"line 00000007" in content) == (False, False)


async def test_a_folder_above_its_budget_is_told(tmp_path: Path) -> None:
    os.close(written(tmp_path / "dump", 200_000))
    told = await enforce_limits(tmp_path / "server.log", LIMIT, check_every_s=0.01)
    assert "more than the limit of 1 MiB" in told


NAMES = [
    "../x",
    "/etc/passwd",
    "t/1/../../../etc/passwd",
    "t/1/\0x",
    "t/1/" + "x" * 5000,
    "t/1/link",
    "t/1/env.env",
    "t",
    "",
    "loop/x",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_an_artifact_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "artifacts" / "t" / "1"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "env.env").write_text("SECRET=x")
    (tmp_path / "artifacts" / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="no artifact"):
        trial_artifacts.resolve_artifact(tmp_path / "artifacts", name)


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


SHOWN: list[Callable[[], ev.Body]] = [
    lambda: ev.ConfigurationProved(effective_args={"a": "x" * 50_000_000}),
    lambda: ev.ConfigurationProved(
        effective_args={f"a{number}": "x" * 1000 for number in range(100_000)}
    ),
    lambda: ev.ConfigurationProved(effective_args={"a": nested(80)}, nccl={"b": nested(80)}),
    lambda: ev.ConfigurationProved(effective_args={"a": math.nan, "b": [math.inf]}),
    lambda: ev.ConfigurationProved(
        effective_args={
            f"a{one}": {f"b{two}": ["y" * 99] * 200 for two in range(60)} for one in range(10)
        }
    ),
    lambda: ev.ServerStopped("kill", 1.0, ("process " * 100,) * 100_000),
    lambda: ev.EvidenceCollected((Artifact("n" * 200, "0" * 64, 1),) * 100_000),
    lambda: ev.ServerFailed(message="m" * 10_000_000, log_tail="\x00" * 10_000_000),
]


@pytest.mark.parametrize("number", range(len(SHOWN)))
def test_an_event_is_small_enough_for_journal_and_line_and_can_be_read_again(number: int) -> None:
    event = ev.Event(1, 1, "t", 1, body=limit_event_size(SHOWN[number]()))
    text = event_to_json(event)
    assert len(text) < 8 * LARGEST_EVENT_BYTES
    assert type(event_from_json(text).body) is type(event.body)


def test_what_fits_is_not_touched() -> None:
    proved = ev.ConfigurationProved(
        effective_args={"tp_size": 8, "chat_template": "x" * 60_000, "list": [1, 2.5, None, True]}
    )
    accepted = ev.TrialAccepted(
        TrialSpec(engine=EngineSpec(env={f"A{number}": "x" * 30_000 for number in range(30)}))
    )
    assert (limit_event_size(proved), limit_event_size(accepted)) == (proved, accepted)
