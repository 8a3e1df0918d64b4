"""Reads a Dockerfile: what its last stage starts (ENTRYPOINT and CMD, as a list or as shell text),
and the variables that this gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fleet_controller.importers.shell.expansion import ShellVariable, ShellVariables, SourceText
from fleet_controller.importers.shell.lexer import tokenize
from fleet_controller.importers.shell.script import read_script
from fleet_controller.importers.shell.tokens import Word
from fleet_controller.importers.sources.launch_values import (
    LaunchContainer,
    StartedCommand,
    starts_of_script,
)
from fleet_controller.yaml.finding_collector import FindingCollector

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)


@dataclass(slots=True)
class _Stage:
    image: SourceText
    env: dict[str, SourceText] = field(default_factory=dict)
    arguments: dict[str, SourceText] = field(default_factory=dict)
    entrypoint: tuple[str, int] = ("", 0)
    command: tuple[str, int] = ("", 0)
    ports: dict[str, str] = field(default_factory=dict)


def starts_of_dockerfile(text: str, notes: FindingCollector) -> list[StartedCommand]:
    """Return what a container of the image would start, or nothing if the file has neither
    ENTRYPOINT nor CMD.
    """
    stage = _Stage(SourceText("", 0))
    for name, rest, line in _instructions(text):
        if name == "FROM":
            before = stage.arguments
            stage = _Stage(
                _expanded(_words(rest, line, notes), before)[0]
                if rest.split()
                else SourceText("", line),
                arguments=before,
            )
        else:
            _instruct(stage, name, rest, line, notes)
    if stage.image.text:
        message = (
            f"the job uses the base image `{stage.image.text[:80]}`, without what this Dockerfile "
            "adds to it"
        )
        notes.warn(
            "not_supported",
            stage.image.line,
            message,
            "build the image, and write its tag into engine.container.image",
            "FROM",
        )
    return list(_starts(stage, notes))


def _instructions(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield each instruction with its name, its text with line ends, and its line. Comments between
    the lines of an instruction are removed, as in Docker.
    """
    collected, first = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if re.match(r"\s*#", line) or (collected and not line.strip()):
            collected += "\\\n" if collected else ""
            continue
        first = first or number
        collected += line
        if line.rstrip().endswith("\\"):
            collected = collected.rstrip() + "\n"
            continue
        if found := _INSTRUCTION.fullmatch(collected):
            yield found[1].upper(), found[2], first
        collected, first = "", 0
    if found := _INSTRUCTION.fullmatch(collected):
        yield found[1].upper(), found[2], first


def _instruct(stage: _Stage, name: str, rest: str, line: int, notes: FindingCollector) -> None:
    if name in ("ENV", "ARG"):
        for key, value in _assignments(rest, line, {**stage.arguments, **stage.env}, notes):
            (stage.env if name == "ENV" else stage.arguments)[key] = value
    elif name == "ENTRYPOINT":
        stage.entrypoint, stage.command = (rest, line), ("", 0)
    elif name == "CMD":
        stage.command = (rest, line)
    elif name == "EXPOSE":
        stage.ports.update((part.partition("/")[0], "") for part in rest.split())


def _words(text: str, line: int, notes: FindingCollector) -> list[Word]:
    return [token for token in tokenize(text, notes, line) if isinstance(token, Word)]


def _expanded(words: list[Word], known: Mapping[str, SourceText]) -> list[SourceText]:
    variables = ShellVariables(
        FindingCollector(""), {name: ShellVariable(value) for name, value in known.items()}
    )
    return [variables.join(word) for word in words]


def _assignments(
    rest: str, line: int, known: Mapping[str, SourceText], notes: FindingCollector
) -> Iterator[tuple[str, SourceText]]:
    values = _expanded(_words(rest, line, notes), known)
    if values and "=" not in values[0].text and len(values) > 1:  # ENV NAME the whole rest
        yield values[0].text, SourceText(" ".join(value.text for value in values[1:]), line)
        return
    for value in values:
        name, equals, text = value.text.partition("=")
        if equals:
            yield name, SourceText(text, value.line, value.unknown, value.unevaluated)


def _starts(stage: _Stage, notes: FindingCollector) -> Iterator[StartedCommand]:
    container = (
        LaunchContainer(stage.image, stage.image.line, "docker", ports=stage.ports)
        if stage.image.text
        else None
    )
    entry, command = _list_form(stage.entrypoint), _list_form(stage.command)
    line = stage.command[1] or stage.entrypoint[1]
    if stage.entrypoint[0] and entry is None:
        yield from _starts_of_shell(stage.entrypoint, stage, container, notes)
    elif command is None and stage.command[0] and not entry:
        yield from _starts_of_shell(stage.command, stage, container, notes)
    elif entry or command:
        words = [*(entry or []), *(command or [])]
        yield StartedCommand(
            tuple(SourceText(word, line) for word in words), line, stage.env, container
        )


def _starts_of_shell(
    written: tuple[str, int],
    stage: _Stage,
    container: LaunchContainer | None,
    notes: FindingCollector,
) -> Iterator[StartedCommand]:
    script = read_script(written[0], notes, written[1], {**stage.arguments, **stage.env})
    for start in starts_of_script(script):
        env = {
            name: value
            for name, value in start.env.items()
            if name not in stage.arguments or name in stage.env
        }
        yield StartedCommand(
            start.words, start.line, env, container, start.redirections, start.end, start.within
        )


def _list_form(written: tuple[str, int]) -> list[str] | None:
    """Return the words of an instruction in list form, or None for shell text."""
    if not written[0].lstrip().startswith("["):
        return None
    try:
        value = json.loads(written[0].replace("\\\n", " "))
    except (ValueError, RecursionError):
        return None
    return [str(word) for word in value] if isinstance(value, list) else None
