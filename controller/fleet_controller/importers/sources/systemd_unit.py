"""Reads a systemd unit: ExecStart and its Environment. systemd starts no shell, so no shell rules
apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from fleet_controller.importers.shell.expansion import ShellVariable, ShellVariables, SourceText
from fleet_controller.importers.shell.lexer import tokenize
from fleet_controller.importers.shell.tokens import Word
from fleet_controller.importers.sources.launch_values import StartedCommand
from fleet_controller.yaml.finding_collector import FindingCollector

_IGNORED_KEYS = (
    "User",
    "Group",
    "WorkingDirectory",
    "LimitMEMLOCK",
    "LimitNOFILE",
    "CPUAffinity",
    "NUMAPolicy",
    "NUMAMask",
    "Slice",
)


def starts_of_unit(text: str, notes: FindingCollector) -> list[StartedCommand]:
    """Return what the unit starts, with the variables of all its Environment lines."""
    entries = list(_entries(text))
    env: dict[str, SourceText] = {}
    for key, value, line in entries:
        if key == "Environment":
            env.update(_environment(value, line, notes))
        elif key == "EnvironmentFile":
            message = f"the variables of `{value[:80]}` are not part of the pasted text"
            notes.warn(
                "not_supported",
                line,
                message,
                "write the variables that the server needs into engine.env",
                key,
            )
        elif key in _IGNORED_KEYS:
            notes.info(
                "dropped",
                line,
                f"`{key}` of the unit is left out: the agent starts the server as its own user",
                "",
                key,
            )
    return [
        _start(value, line, env, notes)
        for key, value, line in entries
        if key == "ExecStart" and value.strip()
    ]


def _entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield each entry with its key, its value with line ends, and its line. Comments between the
    lines of a value are removed, as in systemd.
    """
    collected, first = "", 0
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        if collected and re.match(r"\s*[#;]", line):
            collected += "\\\n"
            continue
        first = first or number
        collected += line
        if line.endswith("\\"):
            collected += "\n"
            continue
        key, equals, value = collected.partition("=")
        if equals and re.fullmatch(r"\s*[A-Za-z]+\s*", key):
            yield key.strip(), value, first
        collected, first = "", 0


def _environment(
    value: str, line: int, notes: FindingCollector
) -> Iterator[tuple[str, SourceText]]:
    for word in _words(value, line, notes):
        argument = ShellVariables(FindingCollector("")).join(word)
        name, equals, text = argument.text.partition("=")
        if equals:
            yield name, replace(argument, text=text)


def _words(value: str, line: int, notes: FindingCollector) -> list[Word]:
    return [token for token in tokenize(value, notes, line) if isinstance(token, Word)]


def _start(
    value: str, line: int, env: dict[str, SourceText], notes: FindingCollector
) -> StartedCommand:
    command = re.sub(r"^\s*[-@:+!|]+", "", value)
    variables = ShellVariables(notes, {name: ShellVariable(text) for name, text in env.items()})
    words = tuple(
        _without_specifier(word, notes)
        for word in variables.expand_all(_words(command, line, notes))
    )
    return StartedCommand(words, words[0].line if words else line, env)


def _without_specifier(word: SourceText, notes: FindingCollector) -> SourceText:
    """Replace a specifier of the unit, such as `%i`, with an unknown variable, and `%%`
    with `%`.
    """
    found = re.search(r"(?<!%)%[a-zA-Z]", word.text)
    if found:
        name = f"SPECIFIER_{found[0][1:]}"
        return replace(
            word, text=word.text.replace(found[0], f"${name}"), unknown=(*word.unknown, name)
        )
    return replace(word, text=word.text.replace("%%", "%"))
