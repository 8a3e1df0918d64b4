"""Converts frozen values to protobuf messages and back. Fields are matched by name."""

from __future__ import annotations

import logging
import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from fleet_protos import events
from fleet_protos.json_lines import read_json_line
from fleet_protos.trial_types import GateEffect
from fleet_protos.v1 import trial_pb2

log = logging.getLogger(__name__)

V = TypeVar("V")
M = TypeVar("M", bound=Message)

_BODY_FIELDS: dict[type, str] = {
    body: re.sub(r"(?<!^)(?=[A-Z])", "_", body.__name__).lower() for body in get_args(events.Body)
}
_BODY_TYPES = {text: body for body, text in _BODY_FIELDS.items()}
_TYPE_HINTS: dict[Any, dict[str, Any]] = {}

# How an unknown enum number from a newer peer is read where "unspecified" could do harm: a run
# whose check tripped must not count.
_SAFE_DEFAULTS: dict[type[IntEnum], IntEnum] = {GateEffect: GateEffect.VOID_RUN}


def _type_hints(kind: Any) -> dict[str, Any]:
    if kind not in _TYPE_HINTS:
        _TYPE_HINTS[kind] = get_type_hints(kind)
    return _TYPE_HINTS[kind]


def to_proto(value: Any, message: M) -> M:
    """Fill `message` with the fields of the frozen value. Return the message."""
    for item in fields(value):
        content = getattr(value, item.name)
        if item.name == "body":
            if content is None:  # an event kind that this version does not know
                continue
            target = getattr(message, _BODY_FIELDS[type(content)])
            target.SetInParent()
            to_proto(content, target)
        else:
            _write(message, item.name, content)
    return message


def _write(message: Message, name: str, content: Any) -> None:
    target = getattr(message, name)
    if isinstance(target, Struct):
        target.Clear()
        target.update(dict(content))
    elif is_dataclass(content):
        to_proto(content, target)
    elif isinstance(content, Mapping):
        target.update(content)
    elif isinstance(content, tuple):
        for entry in content:
            if is_dataclass(entry):
                to_proto(entry, target.add())
            else:
                target.append(entry)
    else:
        setattr(message, name, content)


def from_proto(kind: type[V], message: Message) -> V:
    """Return the frozen value of type `kind` that `message` holds. An absent sub-message is read as
    a value with every field zero or empty.
    """
    values: dict[str, Any] = {}
    for name, hint in _type_hints(kind).items():
        if name == "body":
            which = message.WhichOneof("body")
            body = _BODY_TYPES.get(which)
            values[name] = from_proto(body, getattr(message, which)) if body else None
        else:
            values[name] = _read(hint, getattr(message, name))
    return kind(**values)


def _read(hint: Any, content: Any) -> Any:
    origin = get_origin(hint)
    if isinstance(content, Struct):
        return {
            key: _restore_integers(entry)
            for key, entry in json_format.MessageToDict(content).items()
        }
    if origin is tuple:
        return tuple(_read(get_args(hint)[0], entry) for entry in content)
    if origin in (Union, types.UnionType):
        return content
    if isinstance(hint, type) and is_dataclass(hint):
        return from_proto(hint, content)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _enum_member(hint, content)
    return dict(content) if isinstance(content, Mapping) else content


def _enum_member(kind: type[IntEnum], number: int) -> IntEnum:
    """Return the enum member with that number. A number that only newer versions know is logged,
    and read as the safe default of the enum, or as unspecified if the enum has no safe default.
    """
    try:
        return kind(number)
    except ValueError:
        safe = _SAFE_DEFAULTS.get(kind, kind(0))
        log.warning(
            "a newer peer sent %s %d, which this version does not know; it is read as %s",
            kind.__name__,
            number,
            safe.name,
        )
        return safe


def _restore_integers(entry: Any) -> Any:
    """Turn whole numbers back into integers: a Struct holds every number as a double."""
    if isinstance(entry, float) and entry.is_integer():
        return int(entry)
    if isinstance(entry, list):
        return [_restore_integers(part) for part in entry]
    if isinstance(entry, dict):
        return {key: _restore_integers(part) for key, part in entry.items()}
    return entry


def to_json(value: Any, message: Message) -> str:
    """Return the value as one line of JSON, the form that journal and store keep. `message` is an
    empty message of the value's type.
    """
    return json_format.MessageToJson(
        to_proto(value, message), preserving_proto_field_name=True, indent=None, ensure_ascii=False
    )


def from_json(kind: type[V], text: str, message: Message) -> V:
    """Return the value from a line that `to_json` wrote. Unknown fields are ignored. Raises
    json_format.ParseError for any other text.
    """
    try:
        return read_json_line(kind, text, _BODY_TYPES, _empty_value)
    except (ValueError, TypeError, KeyError, AttributeError):
        # written by another version, or not by us: protobuf's own parser decides
        return from_proto(kind, json_format.Parse(text, message, ignore_unknown_fields=True))


def _empty_value(kind: type[V]) -> V:
    """Return the value of an empty message of `trial.proto`."""
    return from_proto(kind, getattr(trial_pb2, kind.__name__)())


def event_to_json(event: events.Event) -> str:
    """Return an event as one line of JSON, as `to_json` does."""
    return to_json(event, trial_pb2.Event())


def event_from_json(text: str) -> events.Event:
    """Return the event from a line that `event_to_json` wrote. Raises json_format.ParseError for
    any other text.
    """
    return from_json(events.Event, text, trial_pb2.Event())
