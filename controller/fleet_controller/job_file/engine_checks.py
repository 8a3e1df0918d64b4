"""Checks the engine section and the levels laid over it: keys that fit the engine's kind, the
container, and secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet_controller.job_file.argument_checks import setting_layers
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath

_LAUNCH_KEYS = (
    "python", "container", "entry", "cpu_binding", "nodes", "phase_timeouts", "proof",
    "gpus", "args", "env", "stop_timeout", "simulation",
)  # fmt: skip

_SGLANG_ONLY_KEYS = ("container", "entry")
_SCHEME = "secret://"
_REFERENCE = re.compile(r"secret://[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAMED_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE
)
_PLAIN = re.compile(
    r"|true|false|[0-9.]+|[/~.].*|secret://.*", re.IGNORECASE
)  # numbers, switches and paths are not secrets
_RESERVED_INSIDE = ("/", "/dev", "/proc", "/sys")


def check_kind(parsed: ParsedJob) -> Iterator[Finding]:
    """Check that the keys of the engine fit its kind, and that keys which this kind needs are
    there.
    """
    if not parsed.is_sound(("engine", "kind")):
        return
    kind = parsed.job.engine.kind
    yield from _check_external(parsed) if kind == "external" else _check_launched(parsed)
    if kind == "sglang" and parsed.is_sound(("engine",)):
        yield from _check_python(parsed)


def _check_external(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if parsed.is_sound(("engine",)) and engine.url is None:
        yield parsed.finding(
            "url_missing",
            ("engine", "kind"),
            "an external engine needs `url`",
            "write `url: http://HOST:PORT`",
        )
    elif engine.url is not None and not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", engine.url):
        yield parsed.finding(
            "bad_url",
            ("engine", "url"),
            f"`{engine.url[:80]}` is not the address of a server",
            "write http://HOST:PORT",
        )
    for key in _LAUNCH_KEYS:
        if parsed.is_written(("engine", key)):
            message = (
                f"`{key}` applies to a server that is launched, and an external server already runs"
            )
            yield parsed.finding(
                "external_key",
                ("engine", key),
                message,
                f"remove `{key}`, or write `kind: sglang`",
                at_key=True,
            )
    if parsed.factor_levels():
        message = "factors are set at launch, and an external server is not launched"
        hint = "remove the factors, and measure each setting in a job of its own"
        yield parsed.finding("external_factors", ("factors",), message, hint, at_key=True)


def _check_launched(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if parsed.is_written(("engine", "url")):
        message = (
            f"`url` applies to an external engine; this one is `{engine.kind}` and is launched"
        )
        yield parsed.finding(
            "url_not_external",
            ("engine", "url"),
            message,
            "remove `url`, or write `kind: external`",
            at_key=True,
        )
    if engine.kind == "sglang" and parsed.is_written(("engine", "simulation")):
        yield _not_simulated_finding(parsed, ("engine", "simulation"))


def _check_python(parsed: ParsedJob) -> Iterator[Finding]:
    engine = parsed.job.engine
    if engine.python is None and engine.container is None:
        message = (
            "`python` is not given: the host's `python` or `image` in the fleet file is used, else "
            "its `python3`"
        )
        yield parsed.finding(
            "python_default",
            ("engine",),
            message,
            "write `python: ~/ENV/bin/python3`",
            severity=INFO,
            at_key=True,
        )


def check_levels(parsed: ParsedJob) -> Iterator[Finding]:
    """Report levels that set `simulation` on an engine that is not simulated."""
    if not parsed.is_sound(("engine", "kind")) or parsed.job.engine.kind != "sglang":
        return
    for factor, levels in parsed.job.factors.items():
        for level in levels:
            path = ("factors", factor, level, "simulation")
            if parsed.is_written(path):
                yield _not_simulated_finding(parsed, path)


def _not_simulated_finding(parsed: ParsedJob, path: KeyPath) -> Finding:
    return parsed.finding(
        "not_simulated",
        path,
        "`simulation` applies to the simulated engine only",
        "remove it",
        at_key=True,
    )


def check_container(parsed: ParsedJob) -> Iterator[Finding]:
    """Report keys that exclude each other, and impossible mounts."""
    engine = parsed.job.engine
    if engine.kind == "external" or not parsed.is_sound(("engine", "kind")):
        return
    if engine.kind != "sglang":
        for key in _SGLANG_ONLY_KEYS:
            if parsed.is_written(("engine", key)):
                message = (
                    f"`{key}` applies to SGLang only; the simulated engine comes with the agent"
                )
                yield parsed.finding(
                    "not_sglang",
                    ("engine", key),
                    message,
                    f"remove `{key}`, or write `kind: sglang`",
                    at_key=True,
                )
    elif engine.container is not None and parsed.is_written(("engine", "python")):
        message = "`python` is a path on the host, but the server runs in a container"
        hint = "remove `python`; for the Python inside the image, write `container: {python: …}`"
        yield parsed.finding("container_python", ("engine", "python"), message, hint, at_key=True)
    yield from _check_mounts(parsed)


def _check_mounts(parsed: ParsedJob) -> Iterator[Finding]:
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
                "write `PATH_INSIDE: PATH_ON_HOST`; the path inside starts with `/`",
                at_key=True,
            )
        elif not bare.startswith(("/", "~/")) or any(mark in f"{inside}{bare}" for mark in ',:"\n'):
            message = f"`{outside[:80]}` is not a path on the host that can be mounted"
            yield parsed.finding(
                "bad_mount",
                (*path, inside),
                message,
                (
                    "start the path with `/` or `~/`, without commas, colons and quotes; end the "
                    "path with `:ro` for read-only"
                ),
            )


def check_secrets(parsed: ParsedJob) -> Iterator[Finding]:
    """Report references to secrets that cannot be resolved, and secrets in plain text."""
    for path, env in setting_layers(parsed, "env"):
        for name, value in env.items():
            yield from _check_secret_variable(parsed, (*path, name), name, value)
    for path, args in setting_layers(parsed, "args"):
        for name, value in args.items():
            if _SCHEME in str(value):
                message = (
                    f"`{name}` would put a secret on the command line, which every user of the "
                    "host can read"
                )
                hint = "pass the secret in `env`, or in a file that only the server's user can read"
                yield parsed.finding("secret_in_args", (*path, name), message, hint)


def is_malformed_secret_reference(value: str | None) -> bool:
    """Return True if the value contains `secret://` but is not a valid reference."""
    return value is not None and _SCHEME in value and not _REFERENCE.fullmatch(value)


def looks_like_plain_secret(name: str, value: str | None) -> bool:
    """Return True if the variable's name suggests a secret and its value is not a reference."""
    return value is not None and bool(_NAMED_SECRET.search(name)) and not _PLAIN.fullmatch(value)


def _check_secret_variable(
    parsed: ParsedJob, path: KeyPath, name: str, value: str | None
) -> Iterator[Finding]:
    if is_malformed_secret_reference(value):
        message = (
            f"`{name}` is not a reference to a secret: the whole value must be `secret://` and a "
            "name of letters, digits and `_`"
        )
        yield parsed.finding(
            "bad_secret", path, message, f"write `{name}: secret://{name.lower()}`"
        )
    elif looks_like_plain_secret(name, value):
        message = (
            f"`{name}` looks like a secret, and would be readable in the job, its records and its "
            "report"
        )
        hint = (
            f"write `secret://{name.lower()}`, and put the value into the secrets file of each "
            "host (docs/user/job-file.md)"
        )
        yield parsed.finding("plain_secret", path, message, hint, severity=WARNING)
