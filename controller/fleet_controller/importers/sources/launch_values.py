"""Defines the values that describe a pasted launch: what is started, with which options, variables
and container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.shell.parser import Redirection
from fleet_controller.importers.shell.script import Script, ScriptCommand


@dataclass(frozen=True, slots=True)
class LaunchContainer:
    """The container that a command runs in. `mounts` maps each path inside to a path on the host.
    `ports` maps each port inside to a port on the host.
    """

    image: SourceText
    line: int
    runtime: str = ""
    shm_size: str = ""
    ipc: str = ""
    gpu_ids: tuple[str, ...] = ()
    gpu_count: int | None = None
    mounts: Mapping[str, SourceText] = field(default_factory=dict)
    ports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartedCommand:
    """A command that the pasted file starts, with its variables. It may be a server or any other
    program.
    """

    words: tuple[SourceText, ...]
    line: int
    env: Mapping[str, SourceText] = field(default_factory=dict)
    container: LaunchContainer | None = None
    redirections: tuple[Redirection, ...] = ()
    end: str = "\n"
    within: tuple[str, ...] = ()
    place: str = ""  # the service or the container that starts it


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Where SGLang's server begins in the words of a command. `kind` is launch_server or serve.
    `options_at` is the index of the first option.
    """

    kind: str
    spelling: str
    python: SourceText | None
    wrapped_by: tuple[SourceText, ...]
    options_at: int
    line: int


@dataclass(frozen=True, slots=True)
class ServerOption:
    """One option of the server. `value` is typed: text, number, True for a flag, or a list.
    `source` is the value as written.
    """

    name: str
    value: Any
    line: int
    spelling: str = ""
    source: SourceText | None = None

    @property
    def is_known(self) -> bool:
        """Whether the value is fully known."""
        return self.source is None or self.source.is_known


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """One server launch as it was read. Its secrets are not masked."""

    start: StartedCommand
    entry: EntryPoint
    options: Mapping[str, ServerOption]
    env: Mapping[str, SourceText]
    loose: tuple[SourceText, ...] = ()  # unknown variables that may hold more options


def starts_of_script(script: Script) -> list[StartedCommand]:
    """Return the commands that a shell script starts, in the order of the script."""
    return [started_command(run) for run in script.runs]


def started_command(run: ScriptCommand) -> StartedCommand:
    """Return the command that a script runs as a StartedCommand."""
    return StartedCommand(run.words, run.line, run.env, None, run.redirections, run.end, run.within)
