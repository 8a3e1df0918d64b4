"""Messages of a peer one minor away: what it adds is harmless, what it lacks has its old meaning,
and further apart is refused in words.
"""

from __future__ import annotations

import logging

import pytest

from fleet_protos import events as ev
from fleet_protos.codec import event_from_json, event_to_json, from_proto, to_proto
from fleet_protos.errors import ErrorKind
from fleet_protos.protocol_version import MINORS, PROTOCOL, incompatibility, is_compatible
from fleet_protos.trial_types import (
    EngineKind,
    Gate,
    GateEffect,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
)
from fleet_protos.v1 import agent_pb2, trial_pb2

VARINT, BYTES = 0, 2


def varint(number: int) -> bytes:
    """A number as protobuf's wire format writes it."""
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, content: bytes | int) -> bytes:
    """One field on the wire, of any number: also of one that no version has yet."""
    if isinstance(content, int):
        return varint(number << 3 | VARINT) + varint(content)
    return varint(number << 3 | BYTES) + varint(len(content)) + content


FUTURE = field(900, b"of tomorrow") + field(901, 7)  # two fields that this version does not know
EVENT_ENGINE = TrialSpec().engine
EVENT = ev.Event(
    5,
    9,
    "t",
    1,
    4,
    Phase.MEASURING,
    ev.RunFinished(RunResult("w", 1, metrics={"output_tok_s": 1.0})),
)


def test_fields_that_a_newer_peer_adds_change_nothing_that_is_known() -> None:
    wire = to_proto(EVENT, trial_pb2.Event()).SerializeToString() + FUTURE
    assert from_proto(ev.Event, trial_pb2.Event.FromString(wire)) == EVENT
    spec = TrialSpec("t", engine=EVENT_ENGINE)
    wire = to_proto(spec, trial_pb2.TrialSpec()).SerializeToString() + FUTURE
    assert from_proto(TrialSpec, trial_pb2.TrialSpec.FromString(wire)) == spec


def test_an_event_of_an_unknown_kind_keeps_its_place_in_the_count_and_can_be_stored() -> None:
    wire = (
        field(1, 6)
        + field(2, 10)
        + field(3, b"t")
        + field(4, 1)
        + field(6, int(Phase.MEASURING))
        + field(777, b"\x0a\x01x")
    )
    event = from_proto(ev.Event, trial_pb2.Event.FromString(wire))
    assert event == ev.Event(6, 10, "t", 1, 0, Phase.MEASURING, None)
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize(
    ("message", "kind", "expected"),
    [
        (
            trial_pb2.Event(sequence=1, phase=99),
            ev.Event,
            ev.Event(sequence=1, phase=Phase.UNSPECIFIED),
        ),  # type: ignore[arg-type]
        (
            trial_pb2.TrialOver(outcome=99, kind=99),
            ev.TrialOver,
            ev.TrialOver(Outcome.UNSPECIFIED, ErrorKind.NONE),
        ),  # type: ignore[arg-type]
        (trial_pb2.Gate(code="new", effect=99), Gate, Gate("new", GateEffect.VOID_RUN)),  # type: ignore[arg-type]
        (trial_pb2.EngineSpec(kind=99), type(EVENT_ENGINE), EngineKind.UNSPECIFIED),  # type: ignore[arg-type]
    ],
    ids=["phase", "outcome and kind", "gate", "engine"],
)
def test_a_number_that_a_newer_peer_adds_is_read_on_the_safe_side_and_told(
    message: trial_pb2.Event, kind: type, expected: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        value = from_proto(kind, message)
    assert (value.kind if isinstance(expected, EngineKind) else value) == expected
    assert "a newer peer sent" in caplog.text


def test_what_an_older_peer_does_not_tell_means_what_it_meant_then() -> None:
    """Of minor 0: no lease, no protocol, no clock, no word about room."""
    start = agent_pb2.StartTrialRequest.FromString(
        field(1, to_proto(TrialSpec("t"), trial_pb2.TrialSpec()).SerializeToString())
    )
    assert not start.HasField("lease")
    about = agent_pb2.DescribeResponse.FromString(field(1, b"agent") + field(2, b"host"))
    assert (
        about.protocol,
        about.now_unix_ns,
        about.takes_no_trials,
        list(about.kept_attempts),
    ) == (0, 0, "", [])


def test_one_minor_apart_works_in_both_directions_and_two_do_not() -> None:
    assert [is_compatible(theirs, 5) for theirs in (3, 4, 5, 6, 7)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert incompatibility("the agent", 3, "this controller", 5) == (
        "the agent speaks protocol 1.3, this controller 1.5: more than 1 apart",
        "update the agent",
    )
    assert incompatibility("the agent", 7, "this controller", 5)[1] == "update this controller"


def test_each_minor_says_what_it_added() -> None:
    assert list(MINORS) == list(range(PROTOCOL + 1))
    assert all(MINORS.values())
