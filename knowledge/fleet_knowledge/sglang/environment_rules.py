"""Finds environment variables that SGLang itself sets or overwrites, and variables that contradict
arguments. Both depend on the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import INFO, WARNING, RuleFinding, ServerConfiguration
from fleet_knowledge.sglang_releases import (
    NEWEST_SGLANG_READ,
    Certainty,
    certainty_of,
    certainty_of_presence,
)

_SGLANG_PREFIXES = ("SGLANG_", "SGL_")


@dataclass(frozen=True, slots=True)
class VariableChange:
    """A value that SGLang writes to a variable at its start.

    `value` is empty if it differs from launch to launch. `when` returns whether SGLang writes the
    value under a given configuration. `why` states this condition in words; it is empty if there is
    no condition.
    """

    variable: str
    value: str
    versions: VersionRange
    source: str
    when: Callable[[ServerConfiguration], bool]
    why: str = ""


def _always(config: ServerConfiguration) -> bool:
    return True


def _symmetric(config: ServerConfiguration) -> bool:
    return config.is_on("enable_symm_mem")


def _not_symmetric(config: ServerConfiguration) -> bool:
    return not _symmetric(config)


def _nvls(config: ServerConfiguration) -> bool:
    return config.is_on("enable_nccl_nvls")


def _neither_nvls_nor_symmetric(config: ServerConfiguration) -> bool:
    return not _nvls(config) and not _symmetric(config)


def _nvls_or_symmetric(config: ServerConfiguration) -> bool:
    return not _neither_nvls_nor_symmetric(config)


def _deterministic(config: ServerConfiguration) -> bool:
    return (
        config.is_on("enable_deterministic_inference")
        and config.size("tp_size") > 1
        and config.text("device") != "cpu"
    )


_ENGINE = "entrypoints/engine.py, _set_envs_and_config, of each version"
_BY_ARGUMENT = "0.5.3, 0.5.9 server_args.py, 0.5.18 - 0.5.23 attention_hook.py"
# 0.5.3 added enable_deterministic_inference itself.
_DETERMINISTIC = "enable_deterministic_inference with tp_size above 1"

# NCCL_CUMEM_ENABLE and NCCL_NVLS_ENABLE: 0.4.1 - 0.5.4.post1 set them over the user's value; from
# 0.5.4.post2 on, which is the first release to keep NCCL_CUMEM_ENABLE, SGLang sets them only where
# they are unset or where an argument asks for them.
VARIABLE_CHANGES: tuple[VariableChange, ...] = (
    VariableChange("CUDA_DEVICE_MAX_CONNECTIONS", "4", VersionRange("", "0.5.4"), _ENGINE, _always),
    VariableChange(
        "CUDA_DEVICE_MAX_CONNECTIONS", "8", VersionRange("0.5.4.post1"), _ENGINE, _always
    ),
    VariableChange(
        "NCCL_CUMEM_ENABLE", "0", VersionRange("", "0.5.4.post1"), _ENGINE, _not_symmetric
    ),
    VariableChange(
        "NCCL_CUMEM_ENABLE", "1", VersionRange("0.5.0"), _ENGINE, _symmetric, "enable_symm_mem"
    ),
    VariableChange(
        "NCCL_NVLS_ENABLE",
        "0",
        VersionRange("", "0.5.4.post1"),
        _ENGINE,
        _neither_nvls_nor_symmetric,
    ),
    VariableChange(
        "NCCL_NVLS_ENABLE",
        "1",
        VersionRange("0.4.6"),
        _ENGINE,
        _nvls_or_symmetric,
        "enable_nccl_nvls or enable_symm_mem",
    ),
    VariableChange(
        "TORCH_NCCL_AVOID_RECORD_STREAMS", "1", VersionRange("", "0.4.9.post6"), _ENGINE, _always
    ),
    VariableChange(
        "CUDA_MODULE_LOADING", "AUTO", VersionRange("0.4.6", "0.5.15"), _ENGINE, _always
    ),
    VariableChange("TF_CPP_MIN_LOG_LEVEL", "3", VersionRange("", "0.5.5"), _ENGINE, _always),
    VariableChange("SGLANG_RUN_ID", "", VersionRange("0.5.1"), _ENGINE, _always),
    VariableChange(
        "NCCL_ALGO", "allreduce:tree", VersionRange(), _BY_ARGUMENT, _deterministic, _DETERMINISTIC
    ),
    VariableChange(
        "NCCL_MIN_NCHANNELS",
        "8",
        VersionRange("0.5.18"),
        _BY_ARGUMENT,
        _deterministic,
        _DETERMINISTIC,
    ),
    VariableChange(
        "NCCL_MAX_NCHANNELS",
        "8",
        VersionRange("0.5.18"),
        _BY_ARGUMENT,
        _deterministic,
        _DETERMINISTIC,
    ),
)

# What SGLang sets where the user sets nothing, from 0.5.4.post2 on; for earlier versions see
# VARIABLE_CHANGES.
DEFAULTS_WHEN_UNSET: Mapping[str, str] = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, slots=True)
class VariableOverwrite:
    """A variable of the job that SGLang overwrites.

    `sure` is False if only some versions overwrite it and the job's version is unknown.
    """

    change: VariableChange
    sure: bool


def find_overwrites(config: ServerConfiguration) -> Iterator[VariableOverwrite]:
    """Yield one overwrite for each variable that SGLang would set to another value."""
    for variable, value in config.env.items():
        rows = [row for row in VARIABLE_CHANGES if row.variable == variable and row.when(config)]
        held = [(row, certainty_of(row.versions, config.release)) for row in rows]
        if all(row.value == value for row, how in held if how) and held:
            continue
        found = [
            VariableOverwrite(row, how == Certainty.YES or _cover_every_version(rows))
            for row, how in held
            if how
        ]
        yield from found[:1]


def _cover_every_version(rows: list[VariableChange]) -> bool:
    """Return whether the rows together cover every version, so that every version overwrites the
    variable.
    """
    return any(not row.versions.first for row in rows) and any(
        not row.versions.last for row in rows
    )


def apply_environment_rules(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Yield the findings about the variables of one configuration."""
    for found in find_overwrites(config):
        yield _overwrite_finding(config, found)
    for rule in _RULES:
        yield from rule(config)
    for name in config.env:
        if name.startswith(_SGLANG_PREFIXES):
            yield from _own_variable(config, name)


def _overwrite_finding(config: ServerConfiguration, found: VariableOverwrite) -> RuleFinding:
    row = found.change
    values = [
        one
        for one in VARIABLE_CHANGES
        if one.variable == row.variable
        and one.when(config)
        and certainty_of(one.versions, config.release)
    ]
    new_values = ", ".join(
        (one.value or "a value that differs from launch to launch")
        + ("" if config.release else _span(one.versions))
        for one in values
    )
    because = f" because of {row.why}" if row.why else ""
    severity = WARNING if found.sure else INFO
    effect = "has no effect" if found.sure else "may have no effect"
    kept = "" if found.sure else "; other versions keep it"
    message = f"`{row.variable}` {effect}: SGLang sets it itself{because} ({new_values}){kept}"
    return RuleFinding(
        "variable_overwritten", severity, f"env.{row.variable}", message, _overwrite_hint(row)
    )


def _span(versions: VersionRange) -> str:
    return (
        ""
        if versions == VersionRange()
        else f" in {versions}"
        if versions.first and versions.last
        else f" {versions}"
    )


def _overwrite_hint(row: VariableChange) -> str:
    if row.variable == "NCCL_NVLS_ENABLE":
        return "enable_nccl_nvls: true in args turns NVLS on in every version"
    if row.variable == "NCCL_CUMEM_ENABLE":
        return (
            "SGLang 0.5.4.post2 and newer keep the job's value; enable_symm_mem: true in args turns"
            " cuMem on"
        )
    cause = row.why
    return f"leave the variable out, or leave {cause} out" if cause else "leave the variable out"


def _cpu_engine(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Check that `device` and SGLANG_USE_CPU_ENGINE agree.

    From 0.4.7 on, utils.is_cpu chooses the CPU engine by the variable alone (0.5.9, 0.5.23
    utils/common.py).
    """
    on, device = config.env.get("SGLANG_USE_CPU_ENGINE") == "1", config.text("device")
    if on and device != "cpu":
        device_text = f"device is {device}" if device else "device is not given"
        message = f"SGLANG_USE_CPU_ENGINE=1 asks for a CPU server, but {device_text}"
        hint = "write device: cpu in args and gpus: 0, or remove the variable"
        yield RuleFinding(
            "variable_contradicts_argument", WARNING, "env.SGLANG_USE_CPU_ENGINE", message, hint
        )
    elif device == "cpu" and not on:
        message = (
            "`device: cpu` without SGLANG_USE_CPU_ENGINE=1: SGLang chooses its CPU kernels by that"
            " variable alone"
        )
        yield RuleFinding(
            "variable_contradicts_argument",
            WARNING,
            "args.device",
            message,
            'write SGLANG_USE_CPU_ENGINE: "1" in env',
        )


def _both_names(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Check that an old SGL_ name and its SGLANG_ name do not have different values.

    From 0.5.4 on, environ.py copies the value of the old name to the new name.
    """
    for name in config.env:
        twin = "SGLANG_" + name.removeprefix("SGL_")
        if name.startswith("SGL_") and twin in config.env and config.env[twin] != config.env[name]:
            message = f"`{name}` and `{twin}` are one setting with two values"
            yield RuleFinding(
                "variable_contradicts_variable", WARNING, f"env.{name}", message, f"keep {twin}"
            )


def _variable_and_argument(config: ServerConfiguration) -> Iterator[RuleFinding]:
    for variable, argument in _TWINS.items():
        if variable in config.env and config.is_variable_on(variable) != config.is_on(argument):
            given = "is given" if config.is_on(argument) else "is not given"
            message = (
                f"`{variable}={config.env[variable]}`, but `{argument}` {given}: up to SGLang 0.5.6"
                " the argument wins, later neither"
            )
            value = "true" if config.is_variable_on(variable) else "false"
            hint = f"write {argument}: {value} in args instead"
            yield RuleFinding(
                "variable_contradicts_argument", WARNING, f"env.{variable}", message, hint
            )


_TWINS: Mapping[str, str] = {
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "enable_deterministic_inference",
    "SGLANG_ENABLE_TORCH_COMPILE": "enable_torch_compile",
}

_RULES: tuple[Callable[[ServerConfiguration], Iterator[RuleFinding]], ...] = (
    _cpu_engine,
    _both_names,
    _variable_and_argument,
)


@dataclass(frozen=True, slots=True)
class _VariableTable:
    read: tuple[Release, ...]
    seen: Mapping[str, tuple[str, str]]


@cache
def _variable_table() -> _VariableTable:
    lines = (
        files(__package__).joinpath("sglang_variables.txt").read_text(encoding="utf-8").splitlines()
    )
    [read] = [
        line.removeprefix("# read: ").split() for line in lines if line.startswith("# read: ")
    ]
    rows = (line.split() for line in lines if line and not line.startswith("#"))
    seen = {name: (first, "" if last == "-" else last) for name, first, last in rows}
    return _VariableTable(tuple(release for text in read if (release := Release.parse(text))), seen)


def _own_variable(config: ServerConfiguration, name: str) -> Iterator[RuleFinding]:
    names = _variable_table()
    if name not in names.seen:
        near = get_close_matches(name[:80], list(names.seen), n=1, cutoff=0.8)
        message = (
            f"`{name[:80]}` is not a variable of any SGLang release known here (up to"
            f" {NEWEST_SGLANG_READ})"
        )
        hint = (
            f"did you mean `{near[0]}`?"
            if near
            else "check the spelling: the server gets this variable unchanged"
        )
        yield RuleFinding("unknown_variable", WARNING, f"env.{name}", message, hint)
        return
    first, last = names.seen[name]
    if (
        config.release
        and certainty_of_presence(first, last, names.read, config.release) == Certainty.NO
    ):
        ended = config.release > (Release.parse(last) or config.release) if last else False
        reason = (
            f"{last} was the last release that did" if ended else f"{first} added this variable"
        )
        message = f"SGLang {config.release} does not read `{name}`: {reason}"
        yield RuleFinding(
            "unknown_variable",
            WARNING,
            f"env.{name}",
            message,
            "leave the variable out, or use another SGLang",
        )
