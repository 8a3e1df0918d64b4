"""Owns the rules about the engine and the levels laid over it: keys that fit its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet_controller.job_file.argument_checks import setting_layers
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath

_LAUNCH_KEYS = (
    "python", "container", "entry", "cpu_binding", "nodes", "phase_timeouts", "proof", "gpus", "args", "env", "stop_timeout", "simulation",
)  # fmt: skip

_SGLANG_ONLY_KEYS = ("container", "entry")
_SCHEME = "secret://"
_REFERENCE = re.compile(r"secret://[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAMED_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE
)
_PLAIN = re.compile(
    r"|true|false|[0-9.]+|[/~.].*|secret://.*", re.IGNORECASE
)  # numbers, switches and paths are no secrets
_RESERVED_INSIDE = ("/", "/dev", "/proc", "/sys")


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


def check_container(parsed: ParsedJob) -> Iterator[Finding]:
    """Keys that exclude each other, and mounts that cannot be."""
    engine = parsed.job.engine
    if engine.kind == "external" or not parsed.is_sound(("engine", "kind")):
        return
    if engine.kind != "sglang":
        for key in _SGLANG_ONLY_KEYS:
            if parsed.is_written(("engine", key)):
                message = f"`{key}` belongs to SGLang; the simulated engine comes with the agent"
                yield parsed.finding(
                    "not_sglang",
                    ("engine", key),
                    message,
                    "remove it, or write kind: sglang",
                    at_key=True,
                )
    elif engine.container is not None and parsed.is_written(("engine", "python")):
        message = "`python` is on the host, and the server runs in a container"
        hint = "remove it; the Python of the image is `container: {python: …}`"
        yield parsed.finding("container_python", ("engine", "python"), message, hint, at_key=True)
    yield from _mounts(parsed)


def _mounts(parsed: ParsedJob) -> Iterator[Finding]:
    path: KeyPath = ("engine", "container", "mounts")
    container = parsed.job.engine.container
    if container is None or not parsed.is_sound(path):
        return
    for inside, outside in container.mounts.items():
        bare = outside.removesuffix(":ro").removesuffix(":rw")
        if (
            not inside.startswith("/")
            or inside.rstrip("/") in ("", *_RESERVED_INSIDE[1:])
            or ":" in inside
        ):
            message = f"nothing can be mounted at `{inside[:80]}`"
            yield parsed.finding(
                "bad_mount",
                (*path, inside),
                message,
                "path inside: path on the host, both from `/` on",
                at_key=True,
            )
        elif not bare.startswith(("/", "~/")) or any(mark in f"{inside}{bare}" for mark in ',:"\n'):
            message = f"`{outside[:80]}` is no path of the host that can be mounted"
            yield parsed.finding(
                "bad_mount",
                (*path, inside),
                message,
                "write it from `/` or `~/` on, with `:ro` to protect it",
            )


def check_secrets(parsed: ParsedJob) -> Iterator[Finding]:
    """References to secrets that cannot be resolved, and secrets that stand in the file."""
    for path, env in setting_layers(parsed, "env"):
        for name, value in env.items():
            yield from _variable(parsed, (*path, name), name, value)
    for path, args in setting_layers(parsed, "args"):
        for name, value in args.items():
            if _SCHEME in str(value):
                message = f"`{name}` would put a secret on the command line, which every user of the host can read"
                hint = "give it in `env`, or a file that only the server's user can read"
                yield parsed.finding("secret_in_args", (*path, name), message, hint)


def is_malformed_secret_reference(value: str | None) -> bool:
    """True for a variable that speaks of a secret and names none."""
    return value is not None and _SCHEME in value and not _REFERENCE.fullmatch(value)


def looks_like_plain_secret(name: str, value: str | None) -> bool:
    """True for a variable whose name says that it holds a secret, and that does not refer to one."""
    return value is not None and bool(_NAMED_SECRET.search(name)) and not _PLAIN.fullmatch(value)


def _variable(parsed: ParsedJob, path: KeyPath, name: str, value: str | None) -> Iterator[Finding]:
    if is_malformed_secret_reference(value):
        message = f"`{name}` is no reference to a secret: the whole value is secret:// and a name of letters, digits and `_`"
        yield parsed.finding("bad_secret", path, message, f"write {name}: secret://{name.lower()}")
    elif looks_like_plain_secret(name, value):
        message = (
            f"`{name}` looks like a secret, and stands in the job, in its records and in its report"
        )
        hint = f"write secret://{name.lower()}, and the value into the secrets file of each host (docs/user/job-file.md)"
        yield parsed.finding("plain_secret", path, message, hint, severity=WARNING)
