"""Values, messages and JSON lines are the same thing in three forms."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_protos import events as ev
from fleet_protos import trial_types
from fleet_protos.codec import (
    event_from_json,
    event_to_json,
    from_json,
    from_proto,
    to_json,
    to_proto,
)
from fleet_protos.json_lines import read_json_line
from fleet_protos.v1 import trial_pb2

BODIES = get_args(ev.Body)
BODY_NAMES = {
    field.name: next(body for body in BODIES if body.__name__ == field.message_type.name)
    for field in trial_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
}
VALUES = [
    trial_types.Simulation, trial_types.EngineSpec, trial_types.Slo, trial_types.Stage, trial_types.Lengths, trial_types.Workload, trial_types.AttachedFile,
    trial_types.SharedPrefix, trial_types.Part, trial_types.Search, trial_types.Searched,
    trial_types.Measure, trial_types.TrialSpec, trial_types.Gate, trial_types.Artifact, trial_types.RunResult, ev.Event, *BODIES,
]  # fmt: skip

texts = st.text(max_size=12)
floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
counts = st.integers(0, 2**31 - 1)
plain = st.one_of(st.booleans(), st.integers(-(2**52), 2**52), st.floats(0.001, 0.999), texts)
simulations = st.builds(
    trial_types.Simulation, floats, st.integers(0, 2**63), floats, floats, floats, floats, floats, st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), st.lists(texts).map(tuple),
)  # fmt: skip
engines = st.builds(
    trial_types.EngineSpec, st.sampled_from(trial_types.EngineKind), texts, st.dictionaries(texts, st.one_of(plain, st.lists(plain, max_size=3))),
    st.dictionaries(texts, texts), counts, texts, texts, floats, floats, simulations,
)  # fmt: skip
stages = st.lists(st.builds(trial_types.Stage, floats, floats, floats), max_size=2).map(tuple)
lengths = st.builds(trial_types.Lengths, texts, counts, counts, floats, floats)
prefixes = st.builds(trial_types.SharedPrefix, counts, counts)
parts = st.builds(trial_types.Part, floats, texts, counts, lengths, counts, lengths, prefixes)
workloads = st.builds(
    trial_types.Workload, texts, counts, counts, floats, texts, floats, texts, counts, texts, st.builds(trial_types.Slo, floats, floats), floats,
    burstiness=floats, stages=stages, output=lengths, trace=texts, speed=floats, input_tokens=counts, input=lengths,
    cache=texts, prefix=prefixes, mix=st.lists(parts, max_size=2).map(tuple), turns=counts, think_s=floats, vocabulary=counts,
    search=st.builds(trial_types.Search, texts, floats, floats, floats, floats),
)  # fmt: skip
measures = st.builds(
    trial_types.Measure, counts, counts, floats, floats, counts, st.integers(0, 2**63)
)
files = st.builds(trial_types.AttachedFile, texts, texts, texts)
specs = st.builds(
    trial_types.TrialSpec, texts, counts, texts, texts, texts, st.dictionaries(texts, texts), counts, texts, engines,
    st.lists(workloads, max_size=2).map(tuple), measures, files=st.lists(files, max_size=2).map(tuple),
)  # fmt: skip


@settings(deadline=None)
@given(specs, st.integers(0, 2**63), st.integers(0, 2**62))
def test_an_event_comes_back_from_its_line_as_it_was(
    spec: trial_types.TrialSpec, sequence: int, at_ns: int
) -> None:
    event = ev.Event(
        sequence,
        at_ns,
        spec.trial_id,
        spec.attempt,
        0,
        trial_types.Phase.LAUNCHING,
        ev.TrialAccepted(spec),
    )
    line = event_to_json(event)
    assert "\n" not in line
    assert event_from_json(line) == event


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_value_is_a_field_of_its_message_and_the_reverse(kind: type) -> None:
    descriptor = trial_pb2.DESCRIPTOR.message_types_by_name[kind.__name__]
    told = {field.name for field in descriptor.fields if field.containing_oneof is None}
    told |= {oneof.name for oneof in descriptor.oneofs}
    assert {field.name for field in fields(kind)} == told


def test_a_body_that_this_version_does_not_know_is_none_and_no_error() -> None:
    message = trial_pb2.Event(sequence=5)
    assert from_proto(ev.Event, message).body is None
    assert event_from_json('{"sequence": "5", "from_tomorrow": {"x": 1}}').sequence == 5


def test_a_whole_number_stays_an_integer_on_the_way() -> None:
    spec = trial_types.EngineSpec(args={"tp_size": 8, "nested": {"list": [1, 2.5]}})
    back = from_proto(trial_types.EngineSpec, to_proto(spec, trial_pb2.EngineSpec()))
    assert repr(back.args["tp_size"]) == "8"
    assert repr(back.args["nested"]) == "{'list': [1, 2.5]}"


def values_of(kind: Any) -> st.SearchStrategy:
    """Any value of a kind, by its hints; absent parts as often as not."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "body"}
    return st.builds(kind, **{name: any_of(hint) for name, hint in hints.items()})


def any_of(hint: Any) -> st.SearchStrategy:
    origin = get_origin(hint)
    if origin is tuple:
        return st.lists(any_of(get_args(hint)[0]), max_size=2).map(tuple)
    if origin is not None:
        value = get_args(hint)[1]
        return st.dictionaries(
            texts,
            st.one_of(plain, st.lists(plain, max_size=3)) if value is Any else any_of(value),
            max_size=2,
        )
    if is_dataclass(hint):
        return values_of(hint)
    if issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    return {
        int: st.integers(0, 2**31 - 1),
        float: st.floats(allow_nan=False),
        str: texts,
        bool: st.booleans(),
    }[hint]


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_the_quick_reader_and_protobufs_own_read_the_same(kind: type) -> None:
    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values_of(kind))
    def same(value: object) -> None:
        message = getattr(trial_pb2, kind.__name__)
        line = to_json(value, message())
        quick = read_json_line(
            kind,
            line,
            BODY_NAMES,
            lambda kind: from_proto(kind, getattr(trial_pb2, kind.__name__)()),
        )
        assert quick == from_proto(kind, json_format.Parse(line, message()))

    same()


def test_a_rate_that_is_no_number_comes_back_as_none() -> None:
    run = trial_types.RunResult(
        "w", 1, metrics={"output_tok_s": float("nan"), "tpot_s_mean": float("inf")}
    )
    metrics = from_json(
        trial_types.RunResult, to_json(run, trial_pb2.RunResult()), trial_pb2.RunResult()
    ).metrics
    assert {name: repr(value) for name, value in metrics.items()} == {
        "output_tok_s": "nan",
        "tpot_s_mean": "inf",
    }


def test_the_quick_reader_leaves_what_it_does_not_know_to_protobufs_own() -> None:
    spec = from_json(
        trial_types.TrialSpec,
        '{"trialId": "t", "engine": {"kind": "ENGINE_KIND_OF_TOMORROW"}}',
        trial_pb2.TrialSpec(),
    )
    assert (spec.trial_id, spec.engine.kind) == ("t", trial_types.EngineKind.UNSPECIFIED)
    assert event_from_json('{"phase": 99, "sequence": "7"}') == ev.Event(sequence=7)
    for line in ('{"attempt": "seven"}', '{"engine": 5}', "{", '{"host": 3}'):
        with pytest.raises(json_format.ParseError):
            from_json(trial_types.TrialSpec, line, trial_pb2.TrialSpec())


def test_values_from_lines_share_nothing_that_can_be_changed() -> None:
    first, second = (
        from_json(trial_types.EngineSpec, "{}", trial_pb2.EngineSpec()) for _ in range(2)
    )
    assert first.env is not second.env
