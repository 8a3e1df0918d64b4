"""Walks through the commands of a script (assignments, exports, functions, blocks) and returns the
words and variables that each command would get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.importers.shell.assignments import (
    append_value,
    builds_on,
    is_conditional,
    parse_assignment,
)
from fleet_controller.importers.shell.expansion import ShellVariable, ShellVariables, SourceText
from fleet_controller.importers.shell.lexer import LARGEST_CHARS, tokenize
from fleet_controller.importers.shell.lost_lines import join_lost_lines
from fleet_controller.importers.shell.parser import Command, Redirection, parse_commands
from fleet_controller.importers.shell.tokens import TEXT, Word
from fleet_controller.yaml.finding_collector import FindingCollector

_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARES = frozenset({"export", "declare", "typeset", "local", "readonly"})
_TESTS = frozenset({"[", "[[", "test"})
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_DEEPEST = 8
_MOST_STEPS = 20_000  # commands to walk through at most


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """One command as it would run: its words, and the variables that it gets from `export` and from
    the assignments before its words.
    """

    words: tuple[SourceText, ...]
    line: int
    env: Mapping[str, SourceText] = field(default_factory=dict)
    redirections: tuple[Redirection, ...] = ()
    end: str = "\n"
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that a script does, as far as it can be read: its commands, and its variables at
    the end.
    """

    runs: tuple[ScriptCommand, ...]
    env: Mapping[str, SourceText]
    unexported: Mapping[str, SourceText]
    here_documents: tuple[Redirection, ...]
    assigned: tuple[tuple[str, str], ...] = ()  # every value of every variable, to find secrets


def read_script(
    text: str,
    notes: FindingCollector,
    first_line: int = 1,
    given: Mapping[str, SourceText] | None = None,
) -> Script:
    """Read shell text. `given` has the variables that exist before its first line. Never raises."""
    walk = _ScriptWalker(notes)
    for name, value in (given or {}).items():
        walk.variables.known[name] = ShellVariable(value, exported=True)
    walk.text(text, first_line, 0)
    walk.finish()
    return walk.script()


class _ScriptWalker:
    def __init__(self, notes: FindingCollector) -> None:
        self.notes = notes
        self.variables = ShellVariables(notes)
        self._runs: list[ScriptCommand] = []
        self._functions: dict[str, list[Command]] = {}
        self._called: set[str] = set()
        self._exports_all = False
        self._documents: list[Redirection] = []
        self._steps = 0
        self.assigned: list[tuple[str, str]] = []

    def script(self) -> Script:
        known = {
            name: variable
            for name, variable in self.variables.known.items()
            if variable.items is None
        }
        exported = {name: variable.value for name, variable in known.items() if variable.exported}
        others = {name: variable.value for name, variable in known.items() if not variable.exported}
        return Script(
            tuple(self._runs), exported, others, tuple(self._documents), tuple(self.assigned)
        )

    def text(self, text: str, first_line: int, depth: int) -> None:
        """Walk through `text` as if it were at this point of the script."""
        self._walk(
            parse_commands(
                join_lost_lines(tokenize(text, self.notes, first_line), self.notes), self.notes
            ),
            depth,
        )

    def finish(self) -> None:
        """Read functions that are never called as if they were called, because a file may contain
        only functions.
        """
        for name, body in list(self._functions.items()):
            if name not in self._called:
                self._walk([replace(command, function="") for command in body], 1)

    def _walk(self, commands: Iterable[Command], depth: int) -> None:
        for command in commands:
            self._steps += 1
            if self._steps > _MOST_STEPS:  # functions that call each other
                return
            self._documents.extend(part for part in command.redirections if part.sign == "<<")
            if command.function:
                self._functions.setdefault(command.function, []).append(command)
            elif command.loop:
                self._loop(command)
            elif not command.is_condition:
                self._command(command, depth)

    def _loop(self, command: Command) -> None:
        """Report the values of a loop's variable, which then has no single value."""
        name, values = command.words[0].bare, self.variables.expand_all(command.words[1:])
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            return
        self.variables.known.pop(name, None)
        if len(values) == 1 and values[0].is_known:
            self.variables.known[name] = ShellVariable(values[0])
        elif values:
            listed = ", ".join(value.text for value in values[:8])[:80]
            hint = (
                f"give `{name}` one value, or make it a factor of the job with these values as "
                "levels"
            )
            self.notes.warn(
                "loop", command.line, f"a loop gives `{name}` the values {listed}", hint
            )

    def _command(self, command: Command, depth: int) -> None:
        assigned, rest = self._leading_assignments(command.words)
        if not rest:
            for name, appends, value in assigned:
                self._assign(name, appends, value, command, exported=None)
            return
        first = rest[0].bare
        if first in _DECLARES:
            self._declare(first, rest[1:], command)
            return
        env = {
            name: self.variables.join(value) for name, _, value in assigned if value.items is None
        }
        self.assigned.extend((name, value.text) for name, value in env.items())
        words = self.variables.expand_all(rest)
        if words:
            self._run(tuple(words), env, command, depth)

    def _leading_assignments(
        self, words: Sequence[Word]
    ) -> tuple[list[tuple[str, bool, Word]], Sequence[Word]]:
        found: list[tuple[str, bool, Word]] = []
        for place, word in enumerate(words):
            assignment = parse_assignment(word)
            if assignment is None:
                return found, words[place:]
            found.append(assignment)
        return found, ()

    def _run(
        self,
        words: tuple[SourceText, ...],
        env: Mapping[str, SourceText],
        command: Command,
        depth: int,
    ) -> None:
        name = words[0].text
        if self._changed_by(name, words) or name in _TESTS:
            return
        if depth < _DEEPEST and name in self._functions:
            self._call(name, words[1:], depth)
        elif depth < _DEEPEST and name == "eval" and all(word.is_known for word in words):
            self.text(
                " ".join(word.text for word in words[1:])[:LARGEST_CHARS], command.line, depth + 1
            )
        elif depth < _DEEPEST and name in _SHELLS and (inner := inner_script(words)):
            self._inner(inner, env, depth)
        else:
            known = self.variables.known.items()
            exported = {
                variable: held.value
                for variable, held in known
                if held.exported and held.items is None
            }
            self._runs.append(
                ScriptCommand(
                    words,
                    words[0].line,
                    {**exported, **env},
                    command.redirections,
                    command.end,
                    command.within,
                )
            )

    def _changed_by(self, name: str, words: tuple[SourceText, ...]) -> bool:
        """Carry out a command that changes variables and starts nothing (`unset`, `set`, `shift`),
        or report `NAME = value`. Return False for any other command.
        """
        if name == "unset":
            self._drop(words[1:])
        elif name == "set":
            self._set_options([word.text for word in words[1:]])
        elif name == "shift":
            count = int(words[1].text) if len(words) > 1 and words[1].text.isdecimal() else 1
            self.variables.positional = (
                self.variables.positional[count:]
                if self.variables.positional
                else self.variables.positional
            )
        elif (
            len(words) > 1 and words[1].text == "=" and _NAME.fullmatch(name) and not name.islower()
        ):  # `echo =` is one
            value = words[2].text[:40] if len(words) > 2 else ""
            message = (
                f"there are blanks around `=` after {name}: the shell would run {name} as a command"
            )
            self.notes.warn(
                "not_assigned",
                words[0].line,
                message,
                f"write {name}={value}",
                name,
            )
        else:
            return False
        return True

    def _set_options(self, options: Sequence[str]) -> None:
        for option in options:
            if option in ("-a", "-o") and (option == "-a" or "allexport" in options):
                self._exports_all = True
            elif option == "+a":
                self._exports_all = False

    def _inner(self, inner: SourceText, env: Mapping[str, SourceText], depth: int) -> None:
        before = dict(self.variables.known)
        for name, value in env.items():
            self.variables.known[name] = ShellVariable(value, exported=True)
        self.text(inner.text, inner.line, depth + 1)
        self.variables.known = before

    def _call(self, name: str, given: tuple[SourceText, ...], depth: int) -> None:
        self._called.add(name)
        outer, self.variables.positional = self.variables.positional, given
        self._walk([replace(command, function="") for command in self._functions[name]], depth + 1)
        self.variables.positional = outer

    def _drop(self, words: Iterable[SourceText]) -> None:
        for word in words:
            self.variables.known.pop(word.text, None)

    def _declare(self, keyword: str, words: Sequence[Word], command: Command) -> None:
        options = [word.bare for word in words if word.bare.startswith("-")]
        exports = (
            keyword == "export" or any("x" in option for option in options)
        ) and "-n" not in options
        for word in words:
            assignment = parse_assignment(word)
            if assignment:
                self._assign(*assignment, command, exported=exports or None)
            elif exports and (known := self.variables.known.get(word.bare)):
                self.variables.known[word.bare] = replace(known, exported=True)
            elif exports and any(piece.kind != TEXT for piece in word.pieces):
                source = self.variables.join(word).text[:60]
                message = f"the variables that `export` takes from `{source}` are unknown"
                self.notes.warn(
                    "not_supported",
                    word.line,
                    message,
                    "write the variables that the server needs into engine.env",
                    "export",
                )

    def _assign(
        self, name: str, appends: bool, word: Word, command: Command, exported: bool | None
    ) -> None:
        old = self.variables.known.get(name)
        is_exported = bool(exported) or self._exports_all or bool(old and old.exported)
        items = tuple(self.variables.expand_all(word.items)) if word.items is not None else None
        value = (
            self.variables.join(replace(word, items=None))
            if items is None
            else SourceText("", word.line)
        )
        self.assigned.append((name, value.text))
        conditional = is_conditional(command)
        new = ShellVariable(replace(value, line=word.line), items, is_exported, conditional)
        if (
            conditional
            and not value.is_known
            and all(not part.isidentifier() for part in value.unknown)
            and not value.unevaluated
        ):
            return  # an optional argument of the script (`$2`), which is not given here
        if appends and old:
            self.variables.known[name] = append_value(old, new)
        elif old and conditional and not self._is_unambiguous(name, old, new, command):
            return
        else:
            self._report_twice(name, old, new, command)
            self.variables.known[name] = new

    def _is_unambiguous(
        self, name: str, old: ShellVariable, new: ShellVariable, command: Command
    ) -> bool:
        """Return True if the variable's value is clear after an assignment inside a block.
        Otherwise report the assignment and make the value unknown.
        """
        if new.items is not None or old.items is not None or not new.value.is_known:
            return not old.value.is_known
        if old.value.text == new.value.text or not old.value.is_known:
            return True
        message = (
            f"`{name}` is `{old.value.text}` or `{new.value.text}`, depending on the block around "
            f"line {command.line}"
        )
        self.notes.warn(
            "conditional", command.line, message[:200], f"set {name} once, without a condition"
        )
        self.variables.known[name] = replace(
            old, value=SourceText(f"${name}", command.line, (name,))
        )
        return False

    def _report_twice(
        self, name: str, old: ShellVariable | None, new: ShellVariable, command: Command
    ) -> None:
        if (
            not old
            or not old.value.line
            or not old.value.text
            or not new.value.text
            or old.items
            or new.items
            or command.function
        ):
            return
        if (
            old.value.text != new.value.text
            and name not in new.value.unknown
            and old.value.is_known
            and not builds_on(old, new)
        ):
            message = (
                f"{name} is given twice ({old.value.text}, {new.value.text}): the last value wins"
            )
            self.notes.warn(
                "last_wins",
                command.line,
                message,
                f"the variable is also set in line {old.value.line}: keep one of the two",
                name,
            )


def inner_script(words: Sequence[SourceText]) -> SourceText | None:
    """Return the text that `bash -c TEXT` would run, or None if the shell is started in another
    way.
    """
    for place, word in enumerate(words[1:], start=1):
        if word.text.startswith("-") and not word.text.startswith("--") and "c" in word.text:
            return words[place + 1] if place + 1 < len(words) else None
        if not word.text.startswith(("-", "+")):
            return None
    return None
