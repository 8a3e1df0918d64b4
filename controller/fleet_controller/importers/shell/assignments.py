"""Reads the assignments of a shell script: `NAME=value`, `NAME+=value` and `NAME=(…)`."""

from __future__ import annotations

import re
from dataclasses import replace

from fleet_controller.importers.shell.expansion import ShellVariable, SourceText
from fleet_controller.importers.shell.lexer import LARGEST_CHARS
from fleet_controller.importers.shell.parser import Command
from fleet_controller.importers.shell.tokens import TEXT, Piece, Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=")


def builds_on(old: ShellVariable, new: ShellVariable) -> bool:
    """Return True if the new value only extends the old value, as in `PATH=/x:$PATH`."""
    return (
        bool(old.value.text)
        and old.value.text in new.value.text
        and len(new.value.text) > len(old.value.text) + 1
    )


def append_value(old: ShellVariable, new: ShellVariable) -> ShellVariable:
    """Return the variable as it is after `NAME+=value`."""
    if old.items is not None or new.items is not None:
        before = old.items if old.items is not None else (old.value,)
        return replace(old, items=before + (new.items if new.items is not None else (new.value,)))
    unknown = (*old.value.unknown, *new.value.unknown)
    unevaluated = (*old.value.unevaluated, *new.value.unevaluated)
    return replace(
        old,
        value=SourceText(
            (old.value.text + new.value.text)[:LARGEST_CHARS], new.value.line, unknown, unevaluated
        ),
    )


def is_conditional(command: Command) -> bool:
    """Return True for a command inside a block or after `||`."""
    return bool(command.within) or command.before == "||"


def parse_assignment(word: Word) -> tuple[str, bool, Word] | None:
    """Return the name, whether the value is appended, and the value of `NAME=value` or
    `NAME+=value`. Return None for any other word.
    """
    if not word.pieces or word.pieces[0].quoted or word.pieces[0].kind != TEXT:
        return None
    found = _ASSIGNMENT.match(word.pieces[0].content)
    if not found:
        return None
    rest = word.pieces[0].content[found.end() :]
    pieces = ((Piece(rest),) if rest else ()) + word.pieces[1:]
    return found[1], bool(found[2]), Word(pieces, word.line, word.items)
