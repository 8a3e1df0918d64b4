"""Owns the rules about the engine and the levels laid over it: keys that fit its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.document import KeyPath
from fleet_controller.yaml.findings import INFO, Finding

_LAUNCH_KEYS = (
    "python", "container", "entry", "cpu_binding", "nodes", "phase_timeouts", "proof", "gpus", "args", "env", "stop_timeout", "simulation",
)  # fmt: skip


def check_kind(parsed: ParsedJob) -> Iterator[Finding]:
    """Keys that do not fit the engine's kind, or that it lacks."""
    if not parsed.is_sound(("engine", "kind")):
        return
    kind = parsed.job.engine.kind
    yield from _external(parsed) if kind == "external" else _launched(parsed)
    if kind == "sglang" and parsed.is_sound(("engine",)):
        yield from _python(parsed)


def _external(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if parsed.is_sound(("engine",)) and engine.url is None:
        yield parsed.finding(
            "url_missing",
            ("engine", "kind"),
            "an external engine needs `url`",
            "write url: http://HOST:PORT",
        )
    elif engine.url is not None and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", engine.url):
        yield parsed.finding(
            "bad_url",
            ("engine", "url"),
            f"`{engine.url[:80]}` is no address of a server",
            "write http://HOST:PORT",
        )
    for key in _LAUNCH_KEYS:
        if parsed.is_written(("engine", key)):
            message = f"`{key}` belongs to a server that is launched; this one already runs"
            yield parsed.finding(
                "external_key",
                ("engine", key),
                message,
                "remove it, or choose kind: sglang",
                at_key=True,
            )
    if parsed.factor_levels():
        message = "factors are set at a launch, and an external server is not launched"
        hint = "remove them: measure each setting as a job of its own"
        yield parsed.finding("external_factors", ("factors",), message, hint, at_key=True)


def _launched(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if parsed.is_written(("engine", "url")):
        message = f"`url` belongs to an external engine; this one is {engine.kind} and is launched"
        yield parsed.finding(
            "url_not_external",
            ("engine", "url"),
            message,
            "remove it, or write kind: external",
            at_key=True,
        )
    if engine.kind == "sglang" and parsed.is_written(("engine", "simulation")):
        yield _not_simulated(parsed, ("engine", "simulation"))


def _python(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if engine.python is None and engine.container is None:
        message = (
            "`python` is not given: that of the host in the fleet file is taken, else its `python3`"
        )
        yield parsed.finding(
            "python_default",
            ("engine",),
            message,
            "write python: ~/ENV/bin/python3",
            severity=INFO,
            at_key=True,
        )


def check_levels(parsed: ParsedJob) -> Iterator[Finding]:
    """Levels with knobs of the simulated engine on another one."""
    if not parsed.is_sound(("engine", "kind")) or parsed.job.engine.kind != "sglang":
        return
    for factor, levels in parsed.job.factors.items():
        for level in levels:
            path = ("factors", factor, level, "simulation")
            if parsed.is_written(path):
                yield _not_simulated(parsed, path)


def _not_simulated(parsed: ParsedJob, path: KeyPath) -> Finding:
    return parsed.finding(
        "not_simulated",
        path,
        "`simulation` has knobs of the simulated engine only",
        "remove it",
        at_key=True,
    )
