"""Promises of when a launch has come on, what of it is told, and when it stands still."""

from __future__ import annotations

from fleet_agent.core.stall_detection import (
    LogSample,
    StallState,
    advance_stall_state,
    is_stalled,
    stall_message,
    start_tracking,
)
from fleet_protos.events import ServerProgressed

LIMITS = {"start": 10.0, "load_weight": 5.0, "ready": 0.0}


def follow(*looks: LogSample) -> tuple[StallState, list[ServerProgressed]]:
    """One look a second."""
    course, told = start_tracking(0.0), []
    for at_s, look in enumerate(looks, start=1):
        course, event = advance_stall_state(course, look, float(at_s))
        told += [event] if event else []
    return course, told


def test_a_new_phase_is_told_once() -> None:
    looks = (
        LogSample(),
        LogSample("start"),
        LogSample("load_weight"),
        LogSample("load_weight"),
        LogSample("ready"),
    )
    assert follow(*looks)[1] == [
        ServerProgressed(phase) for phase in ("start", "load_weight", "ready")
    ]


def test_a_count_is_told_at_each_tenth_and_no_more() -> None:
    _, told = follow(*(LogSample("load_weight", done, 163) for done in range(164)))
    assert len(told) == 11
    assert [event.done for event in told] == [0, 17, 33, 49, 66, 82, 98, 115, 131, 147, 163]


def test_a_launch_moves_by_its_phase_its_count_or_a_new_line() -> None:
    for look in (
        LogSample("load_weight", 1, 9),
        LogSample("ready"),
        LogSample("load_weight", has_news=True),
    ):
        assert (
            follow(LogSample("load_weight"), LogSample("load_weight"), look)[0].advanced_at_s == 3.0
        )
    assert (
        follow(LogSample("load_weight"), LogSample("load_weight"), LogSample("load_weight"))[
            0
        ].advanced_at_s
        == 1.0
    )


def test_a_launch_stands_still_after_the_limit_of_its_phase() -> None:
    course, _ = follow(LogSample("load_weight"))
    assert not is_stalled(course, LIMITS, 6.0)
    assert is_stalled(course, LIMITS, 6.1)


def test_a_phase_without_a_limit_never_stands_still() -> None:
    for phase in ("ready", "unheard_of"):
        assert not is_stalled(follow(LogSample(phase))[0], LIMITS, 1e9)


def test_a_server_that_says_nothing_stands_still_in_its_start() -> None:
    assert is_stalled(start_tracking(0.0), LIMITS, 10.1)


def test_a_standstill_is_told_with_phase_count_time_and_last_line() -> None:
    course, _ = follow(LogSample("load_weight", 61, 163))
    assert stall_message(course, 7.0, "shard 61") == (
        "the launch made no progress in load_weight at 61/163 for 6 s; the last line of its log: shard 61"
    )
    assert (
        stall_message(start_tracking(0.0), 9.0, "")
        == "the launch made no progress in start for 9 s; its log is empty"
    )
