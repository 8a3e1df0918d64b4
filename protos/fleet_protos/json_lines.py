"""Reads values of `trial.proto` from lines of JSON. It is fast, because a controller may read
10,000 trials when it starts.

It reads what `codec.to_json` writes, with the same result as protobuf's own parser: 64-bit numbers
are text, enums are names, and absent fields are zero.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import IntEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from fleet_protos.v1 import trial_pb2

V = TypeVar("V")
Reader = Callable[[Any], Any]
EmptyValueOf = Callable[[type], Any]  # the value of a type with every field absent

_FIELDS_BY_KIND: dict[type, tuple[dict[str, Reader], dict[str, Any], tuple[str, ...]]] = {}
_ENUMS: dict[type[IntEnum], dict[str, IntEnum]] = {}


def read_json_line(kind: type[V], text: str, bodies: Mapping[str, type], zero: EmptyValueOf) -> V:
    """Return the value that a line holds. `bodies` maps the names of event bodies to their types.
    `zero` returns the value of a type with every field absent.

    Raises ValueError, TypeError, KeyError or AttributeError if `to_json` did not write the line.
    """
    return _read_value(kind, json.loads(text), bodies, zero)


def _read_value(
    kind: type[V], document: Mapping[str, Any], bodies: Mapping[str, type], zero: EmptyValueOf
) -> V:
    readers, zeros, maps = _FIELDS_BY_KIND.get(kind) or _learn_fields(kind, bodies, zero)
    values = dict(zeros)
    for name in maps:
        values[name] = {}
    for name, content in document.items():
        if name in readers:
            values[name] = readers[name](content)
        elif "body" in readers and name in bodies:
            values["body"] = _read_value(bodies[name], content, bodies, zero)
    return kind(**values)


def _learn_fields(
    kind: type, bodies: Mapping[str, type], zero: EmptyValueOf
) -> tuple[dict[str, Reader], dict[str, Any], tuple[str, ...]]:
    """Return three things about a type: a reader for each field, the value of each absent field,
    and which fields are mappings. Each value needs mappings of its own.
    """
    hints, empty = get_type_hints(kind), zero(kind)
    zeros = {name: getattr(empty, name) for name in hints}
    readers = {
        name: _reader_for(hint, bodies, zero) for name, hint in hints.items() if name != "body"
    }
    if "body" in hints:
        readers["body"] = _unreadable
    _FIELDS_BY_KIND[kind] = (
        readers,
        zeros,
        tuple(name for name, value in zeros.items() if isinstance(value, dict)),
    )
    return _FIELDS_BY_KIND[kind]


def _reader_for(hint: Any, bodies: Mapping[str, type], zero: EmptyValueOf) -> Reader:
    origin = get_origin(hint)
    if origin is tuple:
        entry = _reader_for(get_args(hint)[0], bodies, zero)
        return lambda content: tuple(map(entry, content))
    if origin is not None and issubclass(origin, Mapping):
        return (
            _struct
            if get_args(hint)[1] is Any
            else _mapping(_reader_for(get_args(hint)[1], bodies, zero))
        )
    if is_dataclass(hint):
        # is_dataclass does not narrow to a type
        return lambda content: _read_value(hint, content, bodies, zero)  # type: ignore[arg-type]
    if issubclass(hint, IntEnum):
        members = _members(hint)
        return lambda content: members[content]
    plain: Mapping[type, Reader] = {int: int, float: float, str: _string, bool: _boolean}
    return plain[hint]


def _members(kind: type[IntEnum]) -> dict[str, IntEnum]:
    """Return the members of an enum by their names in the contract."""
    if kind not in _ENUMS:
        values = trial_pb2.DESCRIPTOR.enum_types_by_name[kind.__name__].values
        _ENUMS[kind] = {value.name: kind(value.number) for value in values}
    return _ENUMS[kind]


def _mapping(entry: Reader) -> Reader:
    return lambda content: {key: entry(value) for key, value in content.items()}


def _string(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"{content!r} is not text")
    return content


def _boolean(content: Any) -> bool:
    if not isinstance(content, bool):
        raise TypeError(f"{content!r} is neither true nor false")
    return content


def _unreadable(content: Any) -> Any:
    raise TypeError("`body` is the name of the oneof, not of a field")


def _struct(content: Mapping[str, Any]) -> dict[str, Any]:
    """Turn whole numbers back into integers: a Struct holds every number as a double."""
    return {key: _restore_integers(entry) for key, entry in content.items()}


def _restore_integers(entry: Any) -> Any:
    if isinstance(entry, bool) or entry is None or isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        return [_restore_integers(part) for part in entry]
    if isinstance(entry, dict):
        return _struct(entry)
    number = float(entry)
    return int(number) if number.is_integer() else number
