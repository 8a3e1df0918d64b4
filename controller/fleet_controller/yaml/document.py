"""Owns the way from YAML 1.2 text to plain values with the place of each; knows nothing of what is
in it.

Nodes are read rather than ready-made values, because a finding needs the place of every key, and
because a variable must keep the spelling that its writer chose (`0x10`, `1e3`, `true`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fleet_controller.yaml.findings import ERROR, Finding

KeyPath = tuple[str | int, ...]
LineColumn = tuple[int, int]

LARGEST_BYTES = 1 << 20
_MOST_NODES = 50_000
_DEEPEST = 50
_MOST_OPEN_BRACKETS = 200
_MOST_MARKS = 20_000
_WHOLE_LIMIT = 1 << 53  # a number travels as a double: beyond this it would change on the way
_STANDARD = "tag:yaml.org,2002:"
_MERGE = f"{_STANDARD}merge"
_SCALARS = ("null", "bool", "int", "float", "timestamp", "str")
# What the YAML library raises on text that is not YAML; found by fuzzing it.
_NOT_YAML = (
    YAMLError,
    RecursionError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    NotImplementedError,
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain values (dict, tuple, str, int, float, bool, None), the places in it (from 1),
    and what was wrong with its YAML.
    """

    value: Any
    file: str
    keys: Mapping[KeyPath, LineColumn] = field(default_factory=dict)
    values: Mapping[KeyPath, LineColumn] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    broken: frozenset[KeyPath] = frozenset()  # paths that `findings` are about

    def place(self, path: KeyPath, *, at_key: bool = False) -> LineColumn:
        """Where `path` stands: its value when that is on the line of its key, else its key; the
        nearest parent if it is not there.
        """
        for length in range(len(path), 0, -1):
            here = path[:length]
            key, value = self.keys.get(here), self.values.get(here)
            if key and (at_key or length < len(path) or not value or value[0] != key[0]):
                return key
            if value:
                return value
        return (1, 1)

    def value_at(self, path: KeyPath, otherwise: Any) -> Any:
        """The value at `path`."""
        value = self.value
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return otherwise
        return value


def dotted(path: KeyPath) -> str:
    """`workloads.busy.concurrency[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(text: str, file: str, is_verbatim: Callable[[KeyPath], bool]) -> Document:
    """Read one YAML document. Where `is_verbatim(path)` says so, a scalar stays the text that was
    written.

    Never raises: what is wrong is in `findings`, and `value` is None when nothing could be read.
    """
    if _is_too_nested(text):
        return Document(None, file, findings=(_nesting_finding(file),))
    if (
        sum(map(text.count, (":", ",", "- "))) > _MOST_MARKS
    ):  # the YAML library reads a few thousand a second
        many = f"the file has more than {_MOST_MARKS} colons, commas and dashes, and is not read"
        return Document(
            None,
            file,
            findings=(
                Finding("too_large", ERROR, file, 1, 1, "", many, "split it into several jobs"),
            ),
        )
    yaml = YAML(typ="rt", pure=True)
    yaml.composer.warn_double_anchors = False
    try:
        node = yaml.compose(text)
    except _NOT_YAML as error:
        return Document(None, file, findings=(_syntax_finding(error, file),))
    if node is None:
        empty = Finding(
            "empty_file",
            ERROR,
            file,
            1,
            1,
            "",
            "the file is empty",
            "`fleetctl init` writes one to start from",
        )
        return Document(None, file, findings=(empty,))
    reader = _NodeReader(file, is_verbatim)
    value = reader.read(node, ())
    return Document(
        value, file, reader.keys, reader.values, tuple(reader.findings), frozenset(reader.broken)
    )


def _is_too_nested(text: str) -> bool:
    """More open brackets than any job has: the YAML library takes quadratic time over them."""
    depth = 0
    for match in re.finditer(r"[\[\]{}]", text):
        depth += 1 if match[0] in "[{" else -1
        if depth > _MOST_OPEN_BRACKETS:
            return True
    return False


def _nesting_finding(file: str) -> Finding:
    return Finding(
        "too_large",
        ERROR,
        file,
        1,
        1,
        "",
        "the file is nested too deeply to read",
        "such a file needs seven levels",
    )


def _syntax_finding(error: Exception, file: str) -> Finding:
    if isinstance(error, RecursionError):
        return _nesting_finding(file)
    problem = str(
        getattr(error, "problem", None) or getattr(error, "reason", None) or "this is not YAML"
    )
    mark = (
        (error.problem_mark or error.context_mark) if isinstance(error, MarkedYAMLError) else None
    )
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    if "'\\t'" in problem:
        return Finding(
            "tab",
            ERROR,
            file,
            line,
            column,
            "",
            "a tab stands where YAML wants spaces",
            "indent with spaces",
        )
    context = getattr(error, "context", None)
    started = error.context_mark if isinstance(error, MarkedYAMLError) else None
    since = f" ({context}, which starts in line {started.line + 1})" if context and started else ""
    if "another document" in problem:
        problem, since = "a second document starts here", ""
    return Finding(
        "yaml_syntax",
        ERROR,
        file,
        line,
        column,
        "",
        f"not YAML: {problem}{since}",
        _syntax_hint(problem),
    )


def _syntax_hint(problem: str) -> str:
    hints = {
        "mapping values are not allowed here": "check the indentation, and quote a value that holds `: `",
        "cannot start any token": "quote the value: some characters mean something to YAML at its start",
        "second document": "a file holds one: remove the `---` between them",
        "undefined alias": "define it with `&name` before `*name`, or quote a value that starts with `*`",
        "end of stream": "a quote is not closed",
        "<stream end>": "a bracket or a brace is not closed",
        "expected ','": "a bracket or a brace is not closed, or a comma is missing",
        "<block end>": "check the indentation of this line against the one above",
    }
    return next(
        (hint for words, hint in hints.items() if words in problem),
        "check this line and the one above it",
    )


class _NodeReader:
    """Walks the nodes once, keeps places, and collects findings instead of stopping at the first."""

    def __init__(self, file: str, is_verbatim: Callable[[KeyPath], bool]) -> None:
        self.keys: dict[KeyPath, LineColumn] = {}
        self.values: dict[KeyPath, LineColumn] = {}
        self.findings: list[Finding] = []
        self.broken: set[KeyPath] = set()
        self._file = file
        self._is_verbatim = is_verbatim
        self._open: list[int] = []
        self._nodes = 0  # read so far, those that merges brought in too

    def read(self, node: Node, path: KeyPath) -> Any:
        """The plain value of `node`, which stands at `path`."""
        self.values[path] = _position_of(node)
        if id(node) in self._open:
            return self._report(
                "endless_alias", node, path, "this alias contains itself", "write the value out"
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
        """Count one more value, of the file or of what a `<<` brings in; False, told once, from the
        first too many or too deep on.
        """
        self._nodes += 1
        if self._nodes <= _MOST_NODES and len(path) <= _DEEPEST:
            return True
        if self._nodes <= _MOST_NODES + 1:
            self._report(
                "too_large",
                node,
                path,
                "the file holds too many values or levels",
                "look for aliases that multiply",
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
                    f"`{_short(name)}` is written twice",
                    f"it is already in line {first}: remove one",
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
        """Entries that `<<` brings in; earlier mappings of a list win, as the merge rule has it."""
        sources = value.value if isinstance(value, SequenceNode) else [value]
        for source in sources:
            if not isinstance(source, MappingNode) or id(source) in self._open:
                self._report(
                    "bad_merge",
                    value,
                    path,
                    "`<<` can only take in a mapping, by its alias",
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
                f'quote it: "{_short(text)}"'
                if text and not _tag(key).startswith("!")
                else "every key is a name"
            )
            self._report(
                "key_not_text",
                key,
                (*path, text),
                f"the key `{_short(text)}` is not text" if text else "a key is not text",
                hint,
            )
            return None
        return text if self._is_sound_text(text, key, path) else None

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        text = str(node.value)
        if node.style == ">":
            text = text.replace("\a", "")  # where the library marks that a line was folded
        tag = _tag(node)
        if tag.removeprefix(_STANDARD) not in _SCALARS:
            return self._report(
                "yaml_tag", node, path, f"the tag `{_short(tag)}` means nothing here", "remove it"
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
                f"`{_short(text)}` is no number that can be kept exactly",
                "quote it if it is text",
            )

    def _is_sound_text(self, text: str, node: Node, path: KeyPath) -> bool:
        if "\0" in text or re.search("[\ud800-\udfff]", text):
            self._report(
                "not_text",
                node,
                path,
                "this text holds a NUL or half a character",
                "remove the escape",
            )
            return False
        return True

    def _check_tag(self, node: Node, path: KeyPath, kind: str) -> None:
        if _tag(node) != f"{_STANDARD}{kind}":
            self._report(
                "yaml_tag",
                node,
                path,
                f"the tag `{_short(_tag(node))}` means nothing here",
                "remove it",
            )


def _plain_value(kind: str, text: str) -> Any:
    """The value of an unquoted scalar; text that only looks like one stays text. Raises
    OverflowError for a number out of range.
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


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
