"""Promises of a log that is followed while it grows: each byte once, and what counts as something
new.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_agent.server.log_follower import LogFollower

LOAD = b"[2026-01-05 10:00:00] Load weight begin. avail mem=138.50 GB\n"


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    look = LogFollower(tmp_path / "none").read()
    assert (look.phase, look.done, look.total, look.has_news) == ("", 0, 0, False)


def test_a_phase_is_known_as_soon_as_its_line_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    log.write_bytes(LOAD[:30])
    assert follower.read().phase == ""
    log.write_bytes(LOAD)
    assert follower.read().phase == "load_weight"
    assert follower.read().has_news is False


@pytest.mark.parametrize(
    ("line", "is_new"),
    [
        (b"waiting for peers, 20 s\n", False),
        (b"now something else\n", True),
        (
            b'INFO:     127.0.0.1:4000 - "GET /health_generate HTTP/1.1" 503 Service Unavailable\n',
            False,
        ),
        (b"model-00002.safetensors:  12%|#   | 100M/4.90G [00:10<08:00]\r", True),
        (b"model-00002.safetensors:  13%|#   | 110M/4.90G [00:11<08:00]\r", True),
        (b"\n\n", False),
    ],
    ids=[
        "the same with other numbers",
        "new words",
        "our own look",
        "a bar",
        "a bar that moved",
        "blank",
    ],
)
def test_only_a_line_that_says_something_new_is_progress(
    tmp_path: Path, line: bytes, is_new: bool
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"waiting for peers, 10 s\n")
    follower = LogFollower(log)
    assert follower.read().has_news is True
    with log.open("ab") as more:
        more.write(line)
    assert follower.read().has_news is is_new


def test_phases_and_cause_are_those_of_the_whole_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    log.write_bytes(LOAD)
    follower.read()
    with log.open("ab") as more:
        more.write(
            b"[2026-01-05 10:00:04] Load weight end. elapsed=4.00 s, type=LlamaForCausalLM, avail mem=61.20 GB.\n"
        )
    assert follower.phases_s()["load_weight"] == 4.0
