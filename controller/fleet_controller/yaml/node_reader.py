"""Turns the nodes of a YAML file into plain values, with the position of each key and value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fleet_controller.yaml.findings import ERROR, Finding
from fleet_controller.yaml.key_path import KeyPath, LineColumn, dotted

_MOST_NODES = 50_000
_DEEPEST = 50
_WHOLE_LIMIT = 1 << 53  # numbers are sent as doubles, which are exact up to here
_STANDARD = "tag:yaml.org,2002:"
_MERGE = f"{_STANDARD}merge"
_SCALARS = ("null", "bool", "int", "float", "timestamp", "str")


class NodeReader:
    """Reads each node once and keeps its position. Findings are collected, so that reading does not
    stop at the first one.
    """

    def __init__(self, file: str, is_verbatim: Callable[[KeyPath], bool]) -> None:
        self.keys: dict[KeyPath, LineColumn] = {}
        self.values: dict[KeyPath, LineColumn] = {}
        self.findings: list[Finding] = []
        self.broken: set[KeyPath] = set()
        self._file = file
        self._is_verbatim = is_verbatim
        self._open: list[int] = []
        self._nodes = 0  # read so far, including those that merges brought in

    def read(self, node: Node, path: KeyPath) -> Any:
        """Return the plain value of `node` at `path`."""
        self.values[path] = _position_of(node)
        if id(node) in self._open:
            return self._report(
                "endless_alias", node, path, "this alias contains itself", "write the value itself"
            )
        if not self._has_room(node, path):
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        self._open.append(id(node))
        value: Any = None
        if isinstance(node, MappingNode):
            value = self._mapping(node, path)
        elif isinstance(node, SequenceNode):
            value = self._sequence(node, path)
        self._open.pop()
        return value

    def _has_room(self, node: Node, path: KeyPath) -> bool:
        """Count one more value, either of the file itself or brought in by `<<`. Return False if
        the file has too many values or levels. The first such value is reported.
        """
        self._nodes += 1
        if self._nodes <= _MOST_NODES and len(path) <= _DEEPEST:
            return True
        if self._nodes <= _MOST_NODES + 1:
            self._report(
                "too_large",
                node,
                path,
                "the file has too many values or too many levels",
                "check for aliases that contain other aliases many times",
            )
            self._nodes = _MOST_NODES + 2
        return False

    def _report(self, code: str, node: Node, path: KeyPath, message: str, hint: str = "") -> None:
        line, column = _position_of(node)
        self.broken.add(path)
        self.findings.append(
            Finding(code, ERROR, self._file, line, column, dotted(path), message, hint)
        )

    def _sequence(self, node: SequenceNode, path: KeyPath) -> tuple[Any, ...]:
        self._check_tag(node, path, "seq")
        return tuple(self.read(item, (*path, index)) for index, item in enumerate(node.value))

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        self._check_tag(node, path, "map")
        found: dict[str, tuple[ScalarNode, Node]] = {}
        merged: list[tuple[ScalarNode, Node]] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged.extend(self._merged(value, path))
                continue
            name = self._key(key, path)
            if name is None:
                continue
            if name in found:
                first = _position_of(found[name][0])[0]
                message, hint = (
                    f"`{_shorten(name)}` is written twice",
                    f"the key is already in line {first}; remove one of the two",
                )
                self._report("duplicate_key", key, (*path, name), message, hint)
                continue
            found[name] = (key, value)
        for key, value in merged:
            found.setdefault(key.value, (key, value))
        return {
            name: self._entry(key, value, (*path, name)) for name, (key, value) in found.items()
        }

    def _entry(self, key: Node, value: Node, path: KeyPath) -> Any:
        self.keys[path] = _position_of(key)
        return self.read(value, path)

    def _merged(self, value: Node, path: KeyPath) -> Iterator[tuple[ScalarNode, Node]]:
        """Yield the entries that `<<` brings in. If several mappings are merged, earlier mappings
        have precedence, as in YAML's merge rule.
        """
        sources = value.value if isinstance(value, SequenceNode) else [value]
        for source in sources:
            if not isinstance(source, MappingNode) or id(source) in self._open:
                self._report(
                    "bad_merge",
                    value,
                    path,
                    "`<<` can only merge a mapping, given by its alias",
                    "write `<<: *name`",
                )
                continue
            if not self._has_room(source, path):
                return
            self._open.append(id(source))
            for key, entry in sorted(source.value, key=lambda pair: bool(pair[0].tag == _MERGE)):
                if key.tag == _MERGE:
                    yield from self._merged(entry, path)
                elif self._has_room(entry, path) and self._key(key, path) is not None:
                    yield key, entry
            self._open.pop()

    def _key(self, key: Node, path: KeyPath) -> str | None:
        text = str(key.value) if isinstance(key, ScalarNode) else ""
        if not isinstance(key, ScalarNode) or key.tag != f"{_STANDARD}str":
            hint = (
                f'quote the key: "{_shorten(text)}"'
                if text and not _tag(key).startswith("!")
                else "write a name as the key"
            )
            self._report(
                "key_not_text",
                key,
                (*path, text),
                f"the key `{_shorten(text)}` is not text" if text else "a key is not text",
                hint,
            )
            return None
        return text if self._is_sound_text(text, key, path) else None

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text = str(node.value)
        if node.style == ">":
            text = text.replace("\a", "")  # the library's mark for a folded line
        tag = _tag(node)
        if tag.removeprefix(_STANDARD) not in _SCALARS:
            return self._report(
                "yaml_tag",
                node,
                path,
                f"the tag `{_shorten(tag)}` has no meaning here",
                "remove the tag",
            )
        if not self._is_sound_text(text, node, path):
            return None
        kind = tag.removeprefix(_STANDARD)
        if kind == "null":
            return None
        if kind == "str" or self._is_verbatim(path):
            return text
        try:
            return _plain_value(kind, text)
        except OverflowError:
            return self._report(
                "bad_number",
                node,
                path,
                f"`{_shorten(text)}` is not a number that can be kept exactly",
                "quote the value if it is text",
            )

    def _is_sound_text(self, text: str, node: Node, path: KeyPath) -> bool:
        if "\0" in text or re.search("[\ud800-\udfff]", text):
            self._report(
                "not_text",
                node,
                path,
                "this text contains a NUL or an incomplete character",
                "remove the escape sequence",
            )
            return False
        return True

    def _check_tag(self, node: Node, path: KeyPath, kind: str) -> None:
        if (tag := _tag(node)) != f"{_STANDARD}{kind}":
            self._report(
                "yaml_tag",
                node,
                path,
                f"the tag `{_shorten(tag)}` has no meaning here",
                "remove the tag",
            )


def _plain_value(kind: str, text: str) -> Any:
    """Return the value of an unquoted scalar. A text that only looks like a number stays text.
    Raises OverflowError for a number that is out of range.
    """
    if kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        if kind == "int":
            return _within_limit(
                int(text.replace("_", ""), 0 if re.match(r"[-+]?0[xob]", text) else 10)
            )
        if kind == "float":
            return _within_limit(
                float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
            )
    except ValueError:
        if len(text) > 64:  # Python refuses to read thousands of digits
            raise OverflowError from None
    return text


def _within_limit(number: Any) -> Any:
    if not math.isfinite(number) or (isinstance(number, int) and abs(number) > _WHOLE_LIMIT):
        raise OverflowError
    return number


def _tag(node: Node) -> str:
    return node.tag or ""


def _position_of(node: Node) -> LineColumn:
    return (node.start_mark.line + 1, node.start_mark.column + 1)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
