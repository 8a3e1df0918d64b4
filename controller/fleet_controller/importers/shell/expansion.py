"""Keeps the variables of a script while it is read, and expands words with them. Unknown variables
stay `$NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.importers.shell.lexer import tokenize
from fleet_controller.importers.shell.tokens import (
    ARITHMETIC,
    TEXT,
    VARIABLE,
    Operator,
    Piece,
    Word,
)
from fleet_controller.yaml.finding_collector import FindingCollector

_PARAMETER = re.compile(r"([!#])?([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_LONGEST = 1 << 16  # characters of one word: the limit for variables that multiply
_MOST_FIELDS = 4096
_MOST_NESTED = 20  # `${A:-${B:-…}}`


@dataclass(frozen=True, slots=True)
class SourceText:
    """A word as the command would get it. Names in `unknown` appear in `text` as `$NAME`.
    `unevaluated` names the kinds of expansion that were not evaluated.

    `is_open` means that the whole text is an unknown variable without quotes, so it may become no
    word or several words. `is_quoted` means that a default brings its own quotes (`${NAME:-"a
    b"}`), so the text is not split.
    """

    text: str
    line: int
    unknown: tuple[str, ...] = ()
    unevaluated: tuple[str, ...] = ()
    is_open: bool = False
    is_quoted: bool = False

    @property
    def is_known(self) -> bool:
        """Whether `text` is exactly what the command would get."""
        return not self.unknown and not self.unevaluated


@dataclass(frozen=True, slots=True)
class ShellVariable:
    """One variable: its value or the items of its array, and whether it is exported to commands."""

    value: SourceText
    items: tuple[SourceText, ...] | None = None
    exported: bool = False
    conditional: bool = False  # set inside a block


@dataclass(slots=True)
class ShellVariables:
    """All variables at one point of the script."""

    notes: FindingCollector
    known: dict[str, ShellVariable] = field(default_factory=dict)
    positional: tuple[SourceText, ...] | None = None  # of the function call that is being read
    reported_defaults: set[str] = field(default_factory=set)

    def expand(self, word: Word) -> list[SourceText]:
        """Return the arguments that one word becomes: none, one or several."""
        if word.items is not None:
            return [self.join(word)]
        made: list[SourceText] = []
        open_field: SourceText | None = None
        for piece in word.pieces:
            parts = self._parts(piece, word.line)
            open_field = _append_parts(made, open_field, parts, piece.quoted)
        made.extend([] if open_field is None else [open_field])
        return made[:_MOST_FIELDS]

    def join(self, word: Word) -> SourceText:
        """Return the word as one argument, as in an assignment, where nothing is split."""
        parts = [_join_texts(self._parts(piece, word.line), word.line) for piece in word.pieces]
        return _join_texts(parts, word.line, "")

    def expand_all(self, words: Iterable[Word]) -> list[SourceText]:
        """Return the arguments of several words."""
        made: list[SourceText] = []
        for word in words:
            made.extend(self.expand(word))
            if len(made) > _MOST_FIELDS:
                break
        return made[:_MOST_FIELDS]

    def _parts(self, piece: Piece, line: int) -> list[SourceText]:
        if piece.kind == TEXT:
            return [SourceText(piece.content, line)]
        if piece.kind == VARIABLE:
            return self._variable(piece, line)
        kind = "shell arithmetic" if piece.kind == ARITHMETIC else "command substitution"
        text = f"$(({piece.content}))" if piece.kind == ARITHMETIC else f"$({piece.content})"
        names = _NAME.findall(piece.content) if piece.kind == ARITHMETIC else []
        unknown = [name for name in dict.fromkeys(names) if name not in self.known]
        return [SourceText(text, line, tuple(unknown), (kind,))]

    def _variable(self, piece: Piece, line: int) -> list[SourceText]:
        found = _PARAMETER.fullmatch(piece.content)
        if not found:
            return [SourceText(f"${{{piece.content}}}", line, (), ("shell expansion",))]
        mark, name, index, operation = found.groups()
        if mark:
            return [
                SourceText(
                    f"${{{piece.content}}}",
                    line,
                    () if name in self.known else (name,),
                    ("shell expansion",),
                )
            ]
        values = self._values(name, index, line)
        return (
            self._apply_operation(name, values, operation, line)
            if operation
            else self._as_found(name, values, line, piece.quoted)
        )

    def _as_found(
        self, name: str, values: list[SourceText] | None, line: int, quoted: bool
    ) -> list[SourceText]:
        if values is None:
            return [SourceText(f"${name}", line, (name,), (), not quoted)]
        return [replace(value, is_open=value.is_open and not quoted) for value in values]

    def _values(self, name: str, index: str | None, line: int) -> list[SourceText] | None:
        """Return the values of the variable, or None if it is unknown."""
        if name in ("@", "*"):
            return list(self.positional) if self.positional is not None else None
        if name.isdigit():
            place = int(name) - 1
            given = self.positional or ()
            return [given[place]] if 0 <= place < len(given) else None
        variable = self.known.get(name)
        if variable is None:
            return None
        if variable.items is None:
            return [replace(variable.value, line=line)]
        if index in ("[@]", "[*]"):
            return list(variable.items)
        place = int(index[1:-1]) if index and index[1:-1].isdigit() else 0
        return list(variable.items[place : place + 1])

    def _apply_operation(
        self, name: str, values: list[SourceText] | None, operation: str, line: int
    ) -> list[SourceText]:
        sign = operation[:2] if operation[:1] == ":" else operation[:1]
        rest = operation[len(sign) :]
        is_empty = values is not None and not any(value.text for value in values)
        if sign in (":+", "+"):
            return [self._expand_default(rest, line)] if values is not None and not is_empty else []
        if sign in (":-", ":=", "-", "=", ":?", "?"):
            if values is not None and not (is_empty and sign[0] == ":"):
                return values
            if "?" in sign:
                return [SourceText(f"${name}", line, (name,), (), False)]
            return [self._apply_default(name, sign, rest, line)]
        if values is None:
            return [SourceText(f"${name}", line, (name,), ("shell expansion",))]
        return _array_slice(name, values, operation) or _apply_cut(
            name, _join_texts(values, line), operation
        )

    def _apply_default(self, name: str, sign: str, text: str, line: int) -> SourceText:
        value = self._expand_default(text, line)
        if (
            name not in self.known
            and not name.isdigit()
            and value.text
            and name not in self.reported_defaults
        ):
            self.reported_defaults.add(name)
            message = f"`{name}` is not set in the file: its default is used"
            self.notes.info(
                "default_taken",
                line,
                message,
                f"set {name} before the command if you use another value",
            )
        if "=" in sign:
            self.known[name] = ShellVariable(value)
        return value

    def _expand_default(self, text: str, line: int) -> SourceText:
        """Return the text after `:-`, with its variables expanded and its quotes removed."""
        tokens = (
            tokenize(text, FindingCollector(""), line)
            if text.count("${") < _MOST_NESTED
            else [Operator("\n", line)]
        )
        if any(not isinstance(token, Word) for token in tokens):
            return SourceText(text.strip("'\""), line)
        words = [token for token in tokens if isinstance(token, Word)]
        is_quoted = len(words) == 1 and all(piece.quoted for piece in words[0].pieces)
        return replace(_join_texts([self.join(word) for word in words], line), is_quoted=is_quoted)


def _append_parts(
    made: list[SourceText], open_field: SourceText | None, parts: Sequence[SourceText], quoted: bool
) -> SourceText | None:
    """Add the parts of one piece to the unfinished argument, and split at blanks that are not
    quoted. Return the new unfinished argument.
    """
    for number, part in enumerate(parts):
        if number and open_field is not None:  # each item of "${A[@]}" is a word of its own
            made.append(open_field)
            open_field = None
        if quoted or part.is_quoted or not part.is_known:
            open_field = _join_texts([open_field, part], part.line, "") if open_field else part
            continue
        texts = re.split(r"[ \t\n]+", part.text)
        for place, text in enumerate(texts):
            if place and open_field is not None:
                made.append(open_field)
                open_field = None
            if text:
                addition = replace(part, text=text)
                open_field = (
                    _join_texts([open_field, addition], part.line, "") if open_field else addition
                )
    return open_field


def _join_texts(parts: Sequence[SourceText], line: int, between: str = " ") -> SourceText:
    if len(parts) == 1:
        return parts[0]
    unknown = dict.fromkeys(name for part in parts for name in part.unknown)
    unevaluated = dict.fromkeys(kind for part in parts for kind in part.unevaluated)
    return SourceText(
        between.join(part.text for part in parts)[:_LONGEST],
        line,
        tuple(unknown),
        tuple(unevaluated),
    )


def _array_slice(name: str, values: list[SourceText], operation: str) -> list[SourceText]:
    """Return the slice of `${A[@]:1}` or `${@:2:3}`, or an empty list for any other operation."""
    part = re.fullmatch(r":\s*(\d{1,4})(?::(\d{1,4}))?", operation)
    if not part:
        return []
    first = max(int(part[1]) - (name in ("@", "*")), 0)
    return values[first : first + int(part[2])] if part[2] else values[first:]


def _apply_cut(name: str, value: SourceText, operation: str) -> list[SourceText]:
    """Evaluate the usual cuts of a path, such as `${NAME##*/}`. Any other operation stays
    unevaluated.
    """
    cuts = {
        "##*/": value.text.rpartition("/")[2],
        "%/": value.text.removesuffix("/"),
        "%/*": value.text.rpartition("/")[0] or value.text,
    }
    if not value.is_known:
        return [replace(value, is_open=False)]
    if operation in cuts:
        return [replace(value, text=cuts[operation])]
    return [SourceText(f"${{{name}{operation}}}", value.line, (), ("shell expansion",))]
