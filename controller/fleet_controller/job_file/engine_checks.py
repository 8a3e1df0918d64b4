"""Owns the rules about the engine and the levels laid over it: keys that fit its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import INFO, Finding

_LAUNCH_KEYS = (
    "python", "container", "entry", "cpu_binding", "nodes", "phase_timeouts", "proof", "gpus", "args", "env", "stop_timeout", "simulation",
)  # fmt: skip


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


def _python(reading: Reading) -> Iterator[Finding]:
    engine = reading.job.engine
    if engine.python is None and engine.container is None:
        message = "`python` is not given: that of the host in the fleet file is taken, else its `python3`"
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
