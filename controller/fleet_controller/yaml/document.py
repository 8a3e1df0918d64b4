"""Reads YAML 1.2 text into plain values, with the position of each key and value.

The text is read node by node and not straight into values. A finding needs the position of every
key, and a variable must keep its spelling in the file (`0x10`, `1e3`, `true`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fleet_controller.yaml.findings import ERROR, Finding
from fleet_controller.yaml.key_path import KeyPath, LineColumn
from fleet_controller.yaml.node_reader import NodeReader

LARGEST_BYTES = 1 << 20
_MOST_OPEN_BRACKETS = 200
_MOST_MARKS = 20_000
# What the YAML library raises on text that is not YAML, as found by fuzzing.
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
    """The content of a YAML file: plain values (dict, tuple, str, int, float, bool, None), the
    positions of keys and values, and findings about faulty YAML. Lines and columns count from 1.
    """

    value: Any
    file: str
    keys: Mapping[KeyPath, LineColumn] = field(default_factory=dict)
    values: Mapping[KeyPath, LineColumn] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    broken: frozenset[KeyPath] = frozenset()  # paths that `findings` are about

    def place(self, path: KeyPath, *, at_key: bool = False) -> LineColumn:
        """Return the position of a finding about `path`: that of its value if key and value are on
        one line, else that of its key. If the path is not in the file, return the position of the
        nearest parent.
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
        """Return the value at `path`, or `otherwise` if the file has no value there."""
        value = self.value
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return otherwise
        return value


def read_document(text: str, file: str, is_verbatim: Callable[[KeyPath], bool]) -> Document:
    """Read one YAML document. A scalar for which `is_verbatim(path)` is true stays the text that
    was written.

    Never raises. Errors are in `findings`, and `value` is None if nothing could be read.
    """
    if _is_too_nested(text):
        return Document(None, file, findings=(_nesting_finding(file),))
    if (
        sum(map(text.count, (":", ",", "- "))) > _MOST_MARKS
    ):  # the YAML library reads a few thousand a second
        many = (
            f"the file has more than {_MOST_MARKS} colons, commas and dashes, which is too many to "
            "read"
        )
        return Document(
            None,
            file,
            findings=(Finding("too_large", ERROR, file, 1, 1, "", many, "split the file"),),
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
            "`fleetctl init` writes a file to start from",
        )
        return Document(None, file, findings=(empty,))
    reader = NodeReader(file, is_verbatim)
    value = reader.read(node, ())
    return Document(
        value, file, reader.keys, reader.values, tuple(reader.findings), frozenset(reader.broken)
    )


def _is_too_nested(text: str) -> bool:
    """Return whether more brackets are open at once than any job needs. The YAML library takes
    quadratic time for nested brackets.
    """
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
        "use fewer levels: a job or fleet file needs at most seven",
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
            "there is a tab where YAML needs spaces",
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
        "mapping values are not allowed here": (
            "check the indentation, and quote a value that holds `: `"
        ),
        "cannot start any token": "quote the value: its first character has a meaning in YAML",
        "second document": "a file holds only one document: remove the `---` between documents",
        "undefined alias": (
            "define the alias with `&name` before `*name`, or quote a value that starts with `*`"
        ),
        "end of stream": "close the quote",
        "<stream end>": "close the bracket or brace",
        "expected ','": "close the bracket or brace, or add the missing comma",
        "<block end>": "compare the indentation of this line with the line above",
    }
    return next(
        (hint for words, hint in hints.items() if words in problem),
        "check this line and the line above",
    )
