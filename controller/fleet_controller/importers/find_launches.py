"""Finds the server launches among the commands of a file. Looks into containers and scripts, and
reports other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from fleet_controller.importers.entry_point import find_entry, names_a_launch, other_program_kind
from fleet_controller.importers.server_options import read_options
from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.shell.script import inner_script, read_script
from fleet_controller.importers.sources.docker_run import read_docker_run
from fleet_controller.importers.sources.launch_values import (
    EntryPoint,
    ServerLaunch,
    StartedCommand,
    started_command,
)
from fleet_controller.importers.sources.srun_container import srun_container
from fleet_controller.importers.wrapper_programs import (
    removed_variables,
    report_wrappers,
    wrapper_variables,
)
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_knowledge.release import Release

_DEEPEST = 4
_SILENT = frozenset({
    "echo", "printf", "cd", "mkdir", "sleep", "wait", "true", "false", ":", "trap", "ulimit",
    "shopt", "kill", "pkill", "read", "exit", "return", "shift", "test", "rm", "cp", "ls", "cat",
    "tail", "tee", "date", "let", "local", "break", "continue", "hostname", "pwd", "chmod",
    "touch", "curl", "wget", "grep",
})  # fmt: skip
_MOST_REPORTED = 12
_OTHER_PROGRAMS = {
    "router": (
        "a router is left out: a job measures one server",
        "to measure several servers behind a router, write `engine: {kind: external, url: …}`",
    ),
    "bench": (
        "a benchmark client is left out: the job's workloads define the requests",
        "write the load of that client into `workloads`",
    ),
    "vllm": ("a server of another engine is left out: a job launches SGLang", ""),
}


def find_launches(starts: Iterable[StartedCommand], notes: FindingCollector) -> list[ServerLaunch]:
    """Return every SGLang server that is launched, and report what else is started."""
    found = []
    others: list[StartedCommand] = []
    for start in starts:
        for opened in _open_command(start, notes, 0):
            launch = _read_launch(opened, notes)
            found.extend([launch] if launch else [])
            others.extend([] if launch else [opened])
    _report_others(others, bool(found), notes)
    return found


def _open_command(
    start: StartedCommand, notes: FindingCollector, depth: int
) -> Iterator[StartedCommand]:
    """Yield the command itself, or the commands inside it if it starts a container or contains a
    script.
    """
    if depth > _DEEPEST or not start.words:
        return
    if (
        start.container is None
        and start.words[0].text == "srun"
        and (find_entry(start.words) or _script_within(start.words))
    ):
        start = replace(start, container=srun_container(start.words, notes))
    inside = read_docker_run(start, notes) if start.container is None else None
    if inside is not None:
        _report_surroundings(start, notes)
        yield from _open_command(replace(inside, redirections=(), end="\n"), notes, depth + 1)
        return
    nested = None if find_entry(start.words) else _script_within(start.words)
    if nested is None:
        yield start
        return
    report_wrappers(start.words[: start.words.index(nested)], notes)
    script = read_script(nested.text, notes, nested.line, start.env)
    _report_surroundings(start, notes)
    for run in script.runs:
        yield from _open_command(
            replace(started_command(run), container=start.container, place=start.place),
            notes,
            depth + 1,
        )


def _script_within(words: Sequence[SourceText]) -> SourceText | None:
    for place, word in enumerate(words):
        if word.text.rpartition("/")[2] in ("bash", "sh", "dash", "zsh", "ksh") and (
            inner := inner_script(words[place:])
        ):
            return inner
    return next(
        (
            word
            for word in words
            if names_a_launch(word.text) and any(char.isspace() for char in word.text)
        ),
        None,
    )


def _read_launch(start: StartedCommand, notes: FindingCollector) -> ServerLaunch | None:
    entry = find_entry(start.words) or _assumed_entry(start, notes)
    if entry is None:
        return None
    report_wrappers(entry.wrapped_by, notes)
    _report_surroundings(start, notes)
    words = start.words[entry.options_at :]
    positional = (
        words[:1]
        if words
        and not words[0].text.startswith("-")
        and words[0].is_known
        and "/" in words[0].text
        else ()
    )
    if positional:
        notes.warn(
            "stray_word",
            words[0].line,
            f"`{words[0].text[:60]}` comes before all options: it is read as --model-path",
            "",
        )
        words = (SourceText("--model-path", words[0].line), *words)
    release = Release.parse(image_version(start.container.image.text)) if start.container else None
    options, loose = read_options(words, notes, release)
    removed = removed_variables(entry.wrapped_by)
    env = {
        name: value
        for name, value in {**start.env, **wrapper_variables(entry.wrapped_by)}.items()
        if name not in removed
    }
    return ServerLaunch(start, entry, options, env, loose)


def image_version(image: str) -> str:
    """Return the version of SGLang in an image's tag, or an empty text if the tag has none."""
    found = re.search(r":v?(\d+\.\d+\.\d+(?:[.-]?(?:post|rc|dev)\d+)?)", image)
    return found[1] if found else ""


def _assumed_entry(start: StartedCommand, notes: FindingCollector) -> EntryPoint | None:
    """Return the entry point that a container with nothing but options is assumed to have: its
    image starts the server. Return None for any other command.
    """
    texts = [word.text for word in start.words]
    if (
        start.container is None
        or not texts[0].startswith("--")
        or not {"--model-path", "--model"} & {text.partition("=")[0] for text in texts}
    ):
        return None
    message = (
        "no entry point is named: the image is assumed to start `python3 -m sglang.launch_server`"
    )
    notes.warn(
        "entry_assumed", start.line, message, "check the entry point with `docker inspect IMAGE`"
    )
    return EntryPoint("launch_server", "python3 -m sglang.launch_server", None, (), 0, start.line)


def _report_surroundings(start: StartedCommand, notes: FindingCollector) -> None:
    """Report redirections, `&`, pipes and blocks around a launch."""
    for part in start.redirections:
        if part.sign not in ("<<", "<<-"):
            notes.info(
                "dropped",
                part.line,
                "a redirection is left out: the agent keeps the server's log",
                "",
                "redirection",
            )
            break
    if start.end == "&":
        notes.info(
            "dropped", start.line, "`&` is left out: the agent waits for the server itself", "", "&"
        )
    elif start.end in ("|", "|&"):
        notes.info(
            "dropped",
            start.line,
            "the pipe after the command is left out: the agent keeps the server's log",
            "",
            "pipe",
        )
    if start.within:
        block = start.within[-1]
        message = f"the command is inside a block (`{block}`): it is read as if it ran"
        notes.warn("conditional", start.line, message, "check that this is the right branch")


def _report_others(
    others: Sequence[StartedCommand], has_launch: bool, notes: FindingCollector
) -> None:
    reported = 0
    for start in others:
        name = start.words[0].text.rpartition("/")[2]
        kind = other_program_kind(start.words)
        if kind:
            notes.warn("not_supported", start.line, *_OTHER_PROGRAMS[kind], key=kind)
        elif name in ("source", "."):
            _report_sourced(start, notes)
        elif has_launch and name not in _SILENT and reported < _MOST_REPORTED:
            reported += 1
            notes.info(
                "dropped",
                start.line,
                f"`{name[:40]}` is left out: a job starts nothing but the server",
                "",
                name[:40],
            )


def _report_sourced(start: StartedCommand, notes: FindingCollector) -> None:
    path = start.words[1].text if len(start.words) > 1 else ""
    if path.endswith("/bin/activate"):
        return
    message = f"`{path[:80]}` is not read, so the variables that it sets are missing"
    notes.warn(
        "not_supported",
        start.line,
        message,
        "paste the `export` lines of that file too, or write its variables into engine.env",
        "source",
    )


def activated_python(starts: Iterable[StartedCommand]) -> SourceText | None:
    """Return the Python of the virtual environment that a script activates last, or None."""
    found = None
    for start in starts:
        texts = [word.text for word in start.words]
        if (
            texts[:1] in (["source"], ["."])
            and len(texts) > 1
            and texts[1].endswith("/bin/activate")
        ):
            found = replace(start.words[1], text=texts[1].removesuffix("activate") + "python3")
    return found
