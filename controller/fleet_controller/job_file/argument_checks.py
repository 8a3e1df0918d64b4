"""Checks single arguments and variables: their spelling, the kind of their values, whether a job
may set them, what SGLang renamed, and shell variables that nothing expands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.findings import ERROR, INFO, WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath
from fleet_knowledge.release import Release
from fleet_knowledge.sglang.numeric_arguments import (
    COUNTED,
    NUMBER,
    WHOLE,
    accepts_value,
    numeric_arguments,
)
from fleet_knowledge.sglang.retired_arguments import RETIRED_ARGUMENTS
from fleet_knowledge.sglang.server_arguments import (
    NEWEST_SGLANG_READ,
    ResolvedName,
    ServerArgument,
    known_arguments,
    nearest_argument,
    newest_release,
    resolve_name,
)
from fleet_knowledge.sglang_releases import Certainty, release_of_image

_ARGUMENT = re.compile(r"[a-z][a-z0-9_]*")
VARIABLE_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ON_LOOPBACK = "remove this argument: the server listens on a loopback port of its own"
_GANG = "the agents set the rank and the addresses of each host of a server"
_RESERVED_ARGUMENTS = {
    "model_path": "write `model.path` instead",
    "host": "remove this argument: the agent sets the address of each launch",
    "port": (
        "remove this argument: the agent gives each launch its own port, so that another server "
        "cannot answer in its place"
    ),
    "api_key": f"{_ON_LOOPBACK}, and the agent gives each launch an API key of its own",
    "admin_api_key": f"{_ON_LOOPBACK}, and the agent gives each launch an API key of its own",
    "ssl_keyfile": f"{_ON_LOOPBACK} and gets plain HTTP requests",
    "ssl_certfile": f"{_ON_LOOPBACK} and gets plain HTTP requests",
    "dist_init_addr": f"remove it: {_GANG}",
    "nnodes": f"write `engine.nodes` instead: {_GANG}",
    "node_rank": f"remove it: {_GANG}",
}
RESERVED_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": (
        "the agent sets this variable for each launch; a job asks for GPUs with `engine.gpus`"
    ),
    "BENCHFLEET_LAUNCH": "the agent sets this variable to recognise its own servers",
}
_KIND_HINTS = {
    "f": "write true, or remove the argument",
    "n": "write true or false",
    "v": "write a value",
    "m": "write a list of values",
}

_NUMBERS = {
    WHOLE: ("a whole number", "write the number in digits, without a unit or a decimal point"),
    COUNTED: ("a whole number", "write the number in digits; newer versions take 32k or 1Ki too"),
    NUMBER: ("a number", "write the number in digits, without a unit"),
}

_UNEXPANDED = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Z_][A-Z0-9_]*(?![A-Za-z0-9_])|^\$[@*\d]$")


def release_of(parsed: ParsedJob) -> Release | None:
    """Return the SGLang version in the tag of the container image, or None if there is no image or
    its tag has no version.
    """
    container = parsed.job.engine.container
    return (
        release_of_image(container.image)
        if container is not None and parsed.is_readable(("engine", "container"))
        else None
    )


def setting_layers(parsed: ParsedJob, key: str) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield every readable `args` or `env` mapping of the file with its path: first the engine's
    mapping, then those of the levels.
    """
    if parsed.is_readable(("engine", key)):
        yield ("engine", key), getattr(parsed.job.engine, key)
    for factor, levels in parsed.job.factors.items():
        for level, content in levels.items():
            path = ("factors", factor, level, key)
            if parsed.is_readable(path):
                yield path, getattr(content, key)


def check_arguments(parsed: ParsedJob) -> Iterator[Finding]:
    """Check the spelling of each argument and the kind of its value. An unknown argument is only a
    warning, because a newer SGLang or a plug-in may know it.
    """
    release = release_of(parsed)
    for path, args in setting_layers(parsed, "args"):
        seen: dict[str, str] = {}
        for written, value in args.items():
            name = resolve_name(written).name
            if name in seen:
                message = f"`{written}` and `{seen[name]}` are the same argument, `{name}`"
                yield parsed.finding(
                    "argument_twice", (*path, written), message, "keep one", at_key=True
                )
            seen.setdefault(name, written)
            yield from _check_name(parsed, (*path, written), written, release)
            yield from _check_value_kind(
                parsed, (*path, written), known_arguments().get(name), value
            )


def _check_name(
    parsed: ParsedJob, path: KeyPath, written: str, release: Release | None
) -> Iterator[Finding]:
    spelling = resolve_name(written, release)
    if spelling.name in _RESERVED_ARGUMENTS:
        yield parsed.finding(
            "reserved_argument",
            path,
            f"a job cannot set `{written}`",
            _RESERVED_ARGUMENTS[spelling.name],
            at_key=True,
        )
    elif not _ARGUMENT.fullmatch(spelling.name):
        message = f"`{written[:60]}` is not a valid name of an argument"
        yield parsed.finding(
            "bad_argument",
            path,
            message,
            "write one argument per key, by its name, such as `tp_size: 8`",
            at_key=True,
        )
    elif spelling.others:
        yield _ambiguous_finding(parsed, path, written, spelling)
    elif not spelling.known:
        near = nearest_argument(spelling.name)
        hint = (
            f"did you mean `{near}`?"
            if near
            else "compare the name with `sglang serve --help` of your version"
        )
        message = (
            f"`{written}` is not an argument of SGLang {NEWEST_SGLANG_READ} or an older version; "
            "it is passed on unchanged"
        )
        yield parsed.finding("unknown_argument", path, message, hint, severity=WARNING, at_key=True)
    else:
        if spelling.shortened:
            message, hint = (
                f"`{written}` is read as `{spelling.name}`",
                "write the full name: another version may read the short name differently",
            )
            yield parsed.finding(
                "argument_shortened", path, message, hint, severity=INFO, at_key=True
            )
        yield from _check_version(parsed, path, known_arguments()[spelling.name], release)


def _ambiguous_finding(
    parsed: ParsedJob, path: KeyPath, written: str, spelling: ResolvedName
) -> Finding:
    others = ", ".join(spelling.others[:3]) + (" …" if len(spelling.others) > 3 else "")
    if not spelling.known:
        message = (
            f"`{written}` is a prefix of {len(spelling.others)} arguments ({others}): SGLang "
            "refuses it as ambiguous"
        )
        return parsed.finding(
            "argument_ambiguous", path, message, "write the full name", at_key=True
        )
    message = (
        f"`{written}` is read as `{spelling.name}`, but it is also a prefix of {others}: newer "
        "versions of SGLang refuse it as ambiguous"
    )
    return parsed.finding(
        "argument_ambiguous",
        path,
        message,
        f"write `{spelling.name}`",
        severity=WARNING,
        at_key=True,
    )


def _check_version(
    parsed: ParsedJob, path: KeyPath, argument: ServerArgument, release: Release | None
) -> Iterator[Finding]:
    name, last = argument.name, argument.last
    retired = RETIRED_ARGUMENTS.get(name)
    instead = f"write {retired.instead} instead" if retired and retired.instead else ""
    if release and argument.certainty_in(release) == Certainty.NO:
        gone = argument.last and release > (Release.parse(argument.last) or release)
        span = (
            f"the last version with this argument is {last}"
            if gone
            else f"this argument was added in {argument.first}"
        )
        message = f"SGLang {release} has no argument `{name}`: {span}"
        hint = (
            instead if gone and instead else "remove the argument, or use another version of SGLang"
        )
        yield parsed.finding(
            "argument_not_in_version", path, message, hint, severity=ERROR, at_key=True
        )
    elif release is None and argument.certainty_in(newest_release()) == Certainty.NO:
        message = (
            f"newer versions of SGLang refuse `{name}`: {last} is the last known version that has "
            "this argument"
        )
        hint = instead or "remove the argument unless your version has it"
        yield parsed.finding(
            "argument_not_in_version", path, message, hint, severity=WARNING, at_key=True
        )
    elif retired and (
        retired.versions.contains(release)
        if release
        else retired.versions.contains(newest_release())
    ):
        message = (
            f"`{argument.name}` is deprecated (SGLang {retired.versions}): it still works, with a "
            "warning"
        )
        yield parsed.finding(
            "argument_deprecated",
            path,
            message,
            instead or "remove it",
            severity=INFO,
            at_key=True,
        )


def _check_value_kind(
    parsed: ParsedJob, path: KeyPath, argument: ServerArgument | None, value: Any
) -> Iterator[Finding]:
    """Report a flag with a value, an argument without a value, or text in place of a number.
    SGLang's argparse refuses these in every version.
    """
    if (
        argument is None
        or argument.kind not in _KIND_HINTS
        or value is None
        or argument.name in _RESERVED_ARGUMENTS
    ):
        return
    is_flag = argument.kind in ("f", "n")
    if is_flag and not isinstance(value, bool):
        message = (
            f"`{argument.name}` is a flag and takes no value, but it is {str(value)[:40]!r}: "
            "SGLang refuses that"
        )
    elif not is_flag and value is True:
        message = f"`{argument.name}` needs a value, and `true` gives it none: SGLang refuses that"
    elif argument.kind == "v" and isinstance(value, list | tuple):
        message = (
            f"`{argument.name}` takes one value, but it has a list of {len(value)}: SGLang refuses "
            "more than one"
        )
    elif (
        not is_flag
        and value is not False
        and not has_unexpanded_variable(value)
        and not accepts_value(argument.name, value)
    ):
        wanted, hint = _NUMBERS[numeric_arguments()[argument.name]]
        message = (
            f"`{argument.name}` takes {wanted}, but it is {str(value)[:40]!r}: SGLang refuses that"
        )
        yield parsed.finding("argument_value", path, message, hint)
        return
    else:
        return
    yield parsed.finding("argument_value", path, message, _KIND_HINTS[argument.kind])


def check_variables(parsed: ParsedJob) -> Iterator[Finding]:
    """Report names that cannot be environment variables, and variables that only the agent sets."""
    for path, env in setting_layers(parsed, "env"):
        for name in env:
            if name in RESERVED_VARIABLES:
                message = f"a job cannot set `{name}`"
                yield parsed.finding(
                    "reserved_variable",
                    (*path, name),
                    message,
                    RESERVED_VARIABLES[name],
                    at_key=True,
                )
            elif not VARIABLE_NAME_PATTERN.fullmatch(name):
                message = f"`{name[:60]}` is not a valid name of a variable"
                yield parsed.finding(
                    "bad_variable",
                    (*path, name),
                    message,
                    "use letters, digits and `_`, and no digit first",
                    at_key=True,
                )


def has_unexpanded_variable(value: Any) -> bool:
    """Return True if `value` is text that contains a shell variable. Other rules skip such a value,
    so that it gets only one finding.
    """
    return isinstance(value, str) and bool(_UNEXPANDED.search(value))


def check_unexpanded_variables(parsed: ParsedJob) -> Iterator[Finding]:
    """Report values that contain a shell variable. A job made from a pasted command contains a
    variable wherever a value was missing.
    """
    for path, value in _launch_texts(parsed):
        found = _UNEXPANDED.search(value)
        if found:
            message = f"`{found[0][:60]}` is not expanded: the server would get this text literally"
            yield parsed.finding("unexpanded_variable", path, message, "write the value itself")


def _launch_texts(parsed: ParsedJob) -> Iterator[tuple[KeyPath, str]]:
    """Yield every text that reaches a server's command line, its variables or its container."""
    document = parsed.document
    for path in (
        ("model",),
        ("engine", "python"),
        ("engine", "container"),
        ("engine", "args"),
        ("engine", "env"),
    ):
        yield from _texts_below(path, document.value_at(path, None))
    for factor, levels in parsed.factor_levels().items():
        for level, content in levels.items():
            for key in ("args", "env"):
                yield from _texts_below(
                    ("factors", factor, level, key),
                    content.get(key) if isinstance(content, dict) else None,
                )


def _texts_below(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts_below((*path, key), entry)
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from _texts_below((*path, place), entry)
