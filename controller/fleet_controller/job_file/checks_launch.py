"""Owns the rules about how a server is launched: container, entry point, secrets. Launches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleet_controller.job_file.argument_checks import layers
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import WARNING, Finding

_OF_SGLANG = ("container", "entry")
_SCHEME = "secret://"
_REFERENCE = re.compile(r"secret://[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NAMED_SECRET = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE)
_PLAIN = re.compile(r"|true|false|[0-9.]+|[/~.].*|secret://.*", re.IGNORECASE)  # numbers, switches and paths are no secrets
_RESERVED_INSIDE = ("/", "/dev", "/proc", "/sys")


def check_container(reading: Reading) -> Iterator[Finding]:
    """Keys that exclude each other, and mounts that cannot be."""
    engine = reading.job.engine
    if engine.kind == "external" or not reading.is_sound(("engine", "kind")):
        return
    if engine.kind != "sglang":
        for key in _OF_SGLANG:
            if reading.is_written(("engine", key)):
                message = f"`{key}` belongs to SGLang; the simulated engine comes with the agent"
                yield reading.finding("not_sglang", ("engine", key), message, "remove it, or write kind: sglang", at_key=True)
    elif engine.container is not None and reading.is_written(("engine", "python")):
        message = "`python` is on the host, and the server runs in a container"
        hint = "remove it; the Python of the image is `container: {python: …}`"
        yield reading.finding("container_python", ("engine", "python"), message, hint, at_key=True)
    yield from _mounts(reading)


def _mounts(reading: Reading) -> Iterator[Finding]:
    path: Path = ("engine", "container", "mounts")
    container = reading.job.engine.container
    if container is None or not reading.is_sound(path):
        return
    for inside, outside in container.mounts.items():
        bare = outside.removesuffix(":ro").removesuffix(":rw")
        if not inside.startswith("/") or inside.rstrip("/") in ("", *_RESERVED_INSIDE[1:]) or ":" in inside:
            message = f"nothing can be mounted at `{inside[:80]}`"
            yield reading.finding("bad_mount", (*path, inside), message, "path inside: path on the host, both from `/` on", at_key=True)
        elif not bare.startswith(("/", "~/")) or any(mark in f"{inside}{bare}" for mark in ',:"\n'):
            message = f"`{outside[:80]}` is no path of the host that can be mounted"
            yield reading.finding("bad_mount", (*path, inside), message, "write it from `/` or `~/` on, with `:ro` to protect it")


def check_secrets(reading: Reading) -> Iterator[Finding]:
    """References to secrets that cannot be resolved, and secrets that stand in the file."""
    for path, env in layers(reading, "env"):
        for name, value in env.items():
            yield from _variable(reading, (*path, name), name, value)
    for path, args in layers(reading, "args"):
        for name, value in args.items():
            if _SCHEME in str(value):
                message = f"`{name}` would put a secret on the command line, which every user of the host can read"
                hint = "give it in `env`, or a file that only the server's user can read"
                yield reading.finding("secret_in_args", (*path, name), message, hint)


def wrong_reference(value: str | None) -> bool:
    """True for a variable that speaks of a secret and names none."""
    return value is not None and _SCHEME in value and not _REFERENCE.fullmatch(value)


def looks_secret(name: str, value: str | None) -> bool:
    """True for a variable whose name says that it holds a secret, and that does not refer to one."""
    return value is not None and bool(_NAMED_SECRET.search(name)) and not _PLAIN.fullmatch(value)


def _variable(reading: Reading, path: Path, name: str, value: str | None) -> Iterator[Finding]:
    if wrong_reference(value):
        message = f"`{name}` is no reference to a secret: the whole value is secret:// and a name of letters, digits and `_`"
        yield reading.finding("bad_secret", path, message, f"write {name}: secret://{name.lower()}")
    elif looks_secret(name, value):
        message = f"`{name}` looks like a secret, and stands in the job, in its records and in its report"
        hint = f"write secret://{name.lower()}, and the value into the secrets file of each host (docs/user/job-file.md)"
        yield reading.finding("plain_secret", path, message, hint, severity=WARNING)
