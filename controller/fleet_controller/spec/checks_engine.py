"""Owns the rules about the engine and the levels laid over it: keys that fit its kind, arguments, variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.spec.arguments import KNOWN_VERSION, nearest_argument, spell
from fleet_controller.spec.document import Path
from fleet_controller.spec.findings import INFO, WARNING, Finding
from fleet_controller.spec.reading import Reading

_LAUNCH_KEYS = ("python", "container", "gpus", "args", "env", "stop_timeout", "simulation")
_ARGUMENT = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_ARGUMENTS = {
    "model_path": "write it as model.path",
    "host": "the agent gives each launch its own address",
    "port": "the agent gives each launch its own port, so that another server cannot answer in its place",
}
_OWN_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "the agent gives each launch its GPUs: write engine.gpus",
    "BENCHFLEET_LAUNCH": "the agent finds its servers by it",
}


def check_kind(reading: Reading) -> Iterator[Finding]:
    """Keys that do not fit the engine's kind, or that it lacks."""
    if not reading.is_sound(("engine", "kind")):
        return
    kind = reading.job.engine.kind
    yield from _external(reading) if kind == "external" else _launched(reading)
    if kind == "sglang" and reading.is_sound(("engine",)):
        yield from _python(reading)


def _external(reading: Reading) -> Iterator[Finding]:
    engine = reading.job.engine
    if reading.is_sound(("engine",)) and engine.url is None:
        yield reading.finding("url_missing", ("engine", "kind"), "an external engine needs `url`", "write url: http://HOST:PORT")
    elif engine.url is not None and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", engine.url):
        yield reading.finding("bad_url", ("engine", "url"), f"`{engine.url[:80]}` is no address of a server", "write http://HOST:PORT")
    for key in _LAUNCH_KEYS:
        if reading.is_written(("engine", key)):
            message = f"`{key}` belongs to a server that is launched; this one already runs"
            yield reading.finding("external_key", ("engine", key), message, "remove it, or choose kind: sglang", at_key=True)
    if reading.factor_levels():
        message = "factors are set at a launch, and an external server is not launched"
        hint = "remove them: measure each setting as a job of its own"
        yield reading.finding("external_factors", ("factors",), message, hint, at_key=True)


def _launched(reading: Reading) -> Iterator[Finding]:
    engine = reading.job.engine
    if reading.is_written(("engine", "url")):
        message = f"`url` belongs to an external engine; this one is {engine.kind} and is launched"
        yield reading.finding("url_not_external", ("engine", "url"), message, "remove it, or write kind: external", at_key=True)
    if engine.kind == "sglang" and reading.is_written(("engine", "simulation")):
        yield _not_simulated(reading, ("engine", "simulation"))
    if reading.is_written(("engine", "container")):
        message = "containers are not launched yet"
        yield reading.finding("container_not_launched", ("engine", "container"), message, "give engine.python instead", at_key=True)


def _python(reading: Reading) -> Iterator[Finding]:
    engine = reading.job.engine
    if engine.python is None and engine.container is None:
        message = "`python` is not given: the host's `python3` must hold SGLang"
        yield reading.finding("python_default", ("engine",), message, "write python: ~/ENV/bin/python3", severity=INFO, at_key=True)


def check_levels(reading: Reading) -> Iterator[Finding]:
    """Levels with knobs of the simulated engine on another one."""
    if not reading.is_sound(("engine", "kind")) or reading.job.engine.kind != "sglang":
        return
    for factor, levels in reading.job.factors.items():
        for level in levels:
            path = ("factors", factor, level, "simulation")
            if reading.is_written(path):
                yield _not_simulated(reading, path)


def _not_simulated(reading: Reading, path: Path) -> Finding:
    return reading.finding("not_simulated", path, "`simulation` has knobs of the simulated engine only", "remove it", at_key=True)


def _layers(reading: Reading, key: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every `args` or `env` of the file with its path, the engine's first."""
    if reading.is_readable(("engine", key)):
        yield ("engine", key), getattr(reading.job.engine, key)
    for factor, levels in reading.job.factors.items():
        for level, content in levels.items():
            path = ("factors", factor, level, key)
            if reading.is_readable(path):
                yield path, getattr(content, key)


def check_arguments(reading: Reading) -> Iterator[Finding]:
    """Spelling of arguments: unknown ones are warnings, for a newer SGLang or a plug-in may know them."""
    for path, args in _layers(reading, "args"):
        seen: dict[str, str] = {}
        for written in args:
            name = spell(written).name
            if name in seen:
                message = f"`{written}` and `{seen[name]}` are the same argument, `{name}`"
                yield reading.finding("argument_twice", (*path, written), message, "keep one", at_key=True)
            seen.setdefault(name, written)
            yield from _argument(reading, (*path, written), written)


def _argument(reading: Reading, path: Path, written: str) -> Iterator[Finding]:
    spelling = spell(written)
    if spelling.name in _OWN_ARGUMENTS:
        yield reading.finding("reserved_argument", path, f"`{written}` is not for a job to set", _OWN_ARGUMENTS[spelling.name], at_key=True)
    elif not _ARGUMENT.fullmatch(spelling.name):
        message = f"`{written[:60]}` cannot be an argument"
        yield reading.finding("bad_argument", path, message, "one argument a key, by its name: tp_size: 8", at_key=True)
    elif spelling.shortened:
        message, hint = f"`{written}` is read as `{spelling.name}`", "write the full name: another version may read it otherwise"
        yield reading.finding("argument_shortened", path, message, hint, severity=INFO, at_key=True)
    elif not spelling.known:
        near = nearest_argument(spelling.name)
        hint = f"did you mean `{near}`?" if near else "check it against `sglang serve --help` of your version"
        message = f"`{written}` is not an argument of SGLang {KNOWN_VERSION}; it is passed on as it is"
        yield reading.finding("unknown_argument", path, message, hint, severity=WARNING, at_key=True)


def check_variables(reading: Reading) -> Iterator[Finding]:
    """Names of variables that cannot be one, or that the agent sets."""
    for path, env in _layers(reading, "env"):
        for name in env:
            if name in _OWN_VARIABLES:
                message = f"`{name}` is not for a job to set"
                yield reading.finding("reserved_variable", (*path, name), message, _OWN_VARIABLES[name], at_key=True)
            elif not _VARIABLE.fullmatch(name):
                message = f"`{name[:60]}` cannot be the name of a variable"
                yield reading.finding("bad_variable", (*path, name), message, "letters, digits and `_`, no digit first", at_key=True)
