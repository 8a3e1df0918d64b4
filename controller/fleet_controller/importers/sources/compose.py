"""Reads a compose file: the words, variables and container of each service. Interpolates variables
as compose does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.importers.shell.expansion import ShellVariables, SourceText
from fleet_controller.importers.shell.lexer import tokenize
from fleet_controller.importers.shell.tokens import Word
from fleet_controller.importers.sources.docker_run import read_mount, read_port
from fleet_controller.importers.sources.launch_values import LaunchContainer, StartedCommand
from fleet_controller.importers.sources.yaml_tree import YamlTree, as_mapping, as_tuple, read_trees
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_controller.yaml.key_path import KeyPath

_VARIABLE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)(?:(:?[-?+])([^{}]*(?:\{[^{}]*\}[^{}]*)*))?\})")
_QUIET = frozenset({
    "image", "command", "entrypoint", "environment", "env_file", "ports", "volumes", "shm_size",
    "ipc", "runtime", "deploy", "gpus", "container_name", "restart", "hostname", "networks",
    "network_mode", "healthcheck", "depends_on", "labels", "logging", "expose", "profiles",
    "stdin_open", "tty", "pull_policy", "extends", "init",
})  # fmt: skip


def starts_of_compose(text: str, notes: FindingCollector) -> list[StartedCommand]:
    """Return what each service of a compose file starts."""
    found = []
    for tree in read_trees(text, notes):
        for name, service in as_mapping(as_mapping(tree.value).get("services")).items():
            if isinstance(service, dict):
                found.append(_Service(tree, ("services", name), service, notes).start())
    return found


class _Service:
    def __init__(
        self, tree: YamlTree, path: KeyPath, value: Mapping[str, Any], notes: FindingCollector
    ) -> None:
        self._tree = tree
        self._path = path
        self._value = value
        self._notes = notes

    def start(self) -> StartedCommand:
        words = (*self._words("entrypoint"), *self._words("command"))
        env = dict(self._env())
        line = words[0].line if words else self._tree.line(self._path)
        self._report_ignored_keys()
        return StartedCommand(words, line, env, self._launch_container(), place=str(self._path[-1]))

    def _words(self, key: str) -> tuple[SourceText, ...]:
        value, path = self._value.get(key), (*self._path, key)
        if isinstance(value, tuple):
            return tuple(
                self._interpolated((*path, place), item)
                for place, item in enumerate(value)
                if not isinstance(item, dict | tuple)
            )
        return self._split(path, value) if isinstance(value, str) else ()

    def _split(self, path: KeyPath, text: str) -> tuple[SourceText, ...]:
        """Split a command that is one text. The shell's quotes apply, but compose starts no shell,
        so operators count as words too.
        """
        whole = self._interpolated(path, text)
        holder = _UnknownVariables(whole)
        tokens = tokenize(holder.text, self._notes, whole.line)
        lines = _WordLocator(self._tree, whole.line) if self._tree.is_folded(path) else None
        words = []
        for token in tokens:
            if isinstance(token, Word):
                joined = holder.restored(ShellVariables(FindingCollector("")).join(token))
                words.append(lines.placed(joined) if lines else joined)
            elif token.sign != "\n":
                hint = (
                    "compose starts no shell: write the command as [bash, -c, …], or remove the "
                    "operator"
                )
                message = (
                    f"`{token.sign}` in the command would be passed to the server as an argument; "
                    "it is left out"
                )
                self._notes.warn("stray_word", token.line, message, hint)
        return tuple(words)

    def _interpolated(self, path: KeyPath, value: Any) -> SourceText:
        return interpolate(self._tree.argument(path, value), self._notes)

    def _env(self) -> Iterator[tuple[str, SourceText]]:
        value, path = self._value.get("environment"), (*self._path, "environment")
        if isinstance(value, dict):
            for name, text in value.items():
                unset = SourceText(f"${name}", self._tree.line((*path, name)), (name,))
                yield name, unset if text is None else self._interpolated((*path, name), text)
        for place, item in enumerate(as_tuple(value)):
            if isinstance(item, str):
                yield from self._env_entry((*path, place), item)
        if self._value.get("env_file"):
            line = self._tree.line((*self._path, "env_file"))
            message = "the variables of `env_file` are not part of the pasted text"
            self._notes.warn(
                "not_supported",
                line,
                message,
                "write the variables that the server needs into engine.env",
                "env_file",
            )

    def _env_entry(self, path: KeyPath, item: str) -> Iterator[tuple[str, SourceText]]:
        written, equals, _ = item.partition("=")
        name, whole = written.strip(), self._interpolated(path, item)
        unset = SourceText(f"${name}", whole.line, (name,))
        yield (
            name,
            SourceText(whole.text.partition("=")[2], whole.line, whole.unknown)
            if equals
            else unset,
        )

    def _launch_container(self) -> LaunchContainer:
        image = self._interpolated((*self._path, "image"), self._value.get("image"))
        ids, count = self._devices()
        return LaunchContainer(
            image=image,
            line=image.line,
            shm_size=str(self._value.get("shm_size") or ""),
            ipc=str(self._value.get("ipc") or ""),
            gpu_ids=ids,
            gpu_count=count,
            mounts=dict(self._mounts()),
            ports=dict(self._ports()),
        )

    def _devices(self) -> tuple[tuple[str, ...], int | None]:
        resources = as_mapping(
            as_mapping(as_mapping(self._value.get("deploy")).get("resources")).get("reservations")
        )
        for device in map(as_mapping, as_tuple(resources.get("devices"))):
            ids = tuple(str(item) for item in as_tuple(device.get("device_ids")))
            count = str(device.get("count") or "")
            if ids or count:
                return ids, len(ids) or (int(count) if count.isdecimal() else None)
        gpus = self._value.get("gpus")
        return (), int(gpus) if isinstance(gpus, str) and gpus.isdecimal() else None

    def _mounts(self) -> Iterator[tuple[str, SourceText]]:
        path = (*self._path, "volumes")
        for place, item in enumerate(as_tuple(self._value.get("volumes"))):
            if isinstance(item, dict):
                source, target = item.get("source"), item.get("target")
                if source and target:
                    only = ":ro" if item.get("read_only") == "true" else ""
                    yield from read_mount(
                        self._interpolated((*path, place), f"{source}:{target}{only}"), self._notes
                    )
            elif isinstance(item, str):
                yield from read_mount(self._interpolated((*path, place), item), self._notes)

    def _ports(self) -> Iterator[tuple[str, str]]:
        for place, item in enumerate(as_tuple(self._value.get("ports"))):
            if isinstance(item, dict):
                yield (
                    str(item.get("target", "")),
                    str(item.get("published") or item.get("target") or ""),
                )
            elif isinstance(item, str):
                yield from read_port(self._interpolated((*self._path, "ports", place), item).text)

    def _report_ignored_keys(self) -> None:
        for key in self._value:
            if key not in _QUIET and not key.startswith("x-"):
                line = (
                    self._tree.document.place((*self._path, key), at_key=True)[0]
                    + self._tree.offset
                )
                message = (
                    f"`{key}` of the service is left out: the agent configures the container itself"
                )
                self._notes.info("dropped", line, message, "", key)


def interpolate(value: SourceText, notes: FindingCollector) -> SourceText:
    """Replace `$NAME` and `${NAME:-default}` as compose does. The shell's variables are unknown, so
    defaults apply.
    """
    unknown: dict[str, None] = {}

    def found(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not name:
            return "$"
        sign, rest = match[3] or "", match[4] or ""
        if "-" in sign:
            notes.info(
                "default_taken",
                value.line,
                f"`{name}` is not set in the file: its default is used",
                "",
            )
            return interpolate(SourceText(rest, value.line), notes).text
        if "+" in sign:
            return ""
        unknown[name] = None
        return f"${name}"

    text = _VARIABLE.sub(found, value.text)
    return SourceText(text, value.line, tuple(unknown), value.unevaluated)


class _UnknownVariables:
    """Hides unknown `$NAME` from the reader of shell words, because compose replaces them before it
    splits words.
    """

    def __init__(self, value: SourceText) -> None:
        self._names = value.unknown
        self.text = value.text.replace("\\$", "$").replace("$", "\ue000")

    def restored(self, argument: SourceText) -> SourceText:
        text = argument.text.replace("\ue000", "$")
        unknown = tuple(name for name in self._names if f"${name}" in text)
        return SourceText(
            text, argument.line, unknown, (), bool(unknown) and text == f"${unknown[0]}"
        )


class _WordLocator:
    """Finds the line of each word of a folded block by searching from the previous word on."""

    def __init__(self, tree: YamlTree, first: int) -> None:
        self._tree = tree
        self._at = first

    def placed(self, word: SourceText) -> SourceText:
        rows = self._tree.lines
        for row in range(
            self._at - self._tree.offset - 1, min(len(rows), self._at - self._tree.offset + 200)
        ):
            if word.text and word.text in rows[row]:
                self._at = row + 1 + self._tree.offset
                break
        return SourceText(word.text, self._at, word.unknown, word.unevaluated, word.is_open)
