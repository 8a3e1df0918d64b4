"""Finds problems in a job's NCCL variables before it runs: in each variable by itself, and in the
variables of a whole server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet_knowledge.nccl import allreduce_path
from fleet_knowledge.nccl.variables.algo_proto_grammar import (
    FUNCTION_LISTS,
    collectives_without_algorithm,
)
from fleet_knowledge.nccl.variables.known_variables import (
    NEWEST_NCCL_READ,
    find_variable,
    foreign_owner,
    is_nccl_name,
    nearest_variable,
    needs_output_check,
)
from fleet_knowledge.nccl.variables.undocumented_variables import UNDOCUMENTED
from fleet_knowledge.nccl.variables.value_types import (
    FilePathValue,
    InvalidValueEffect,
    NamesValue,
    read_number,
)
from fleet_knowledge.nccl.variables.variable import NcclVariable, describe_versions
from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import (
    ERROR,
    INFO,
    WARNING,
    RuleFinding,
    ServerConfiguration,
)
from fleet_knowledge.sglang.environment_rules import DEFAULTS_WHEN_UNSET

_ANY = VersionRange()
_NETWORK_PREFIXES = ("NCCL_IB_", "NCCL_NET_", "NCCL_SOCKET_N", "NCCL_CROSS_NIC", "NCCL_PXN_")
# read while NCCL looks for a network, even on one host
_NETWORK_CHOICE = ("NCCL_IB_DISABLE", "NCCL_NET_PLUGIN")
_NO_SPEED_EFFECT = (
    "NCCL_DEBUG",
    "NCCL_CHECK",
    "NCCL_RAS_",
    "NCCL_SET_THREAD_NAME",
    "NCCL_TOPO_DUMP",
    "NCCL_GRAPH_DUMP",
    "NCCL_PROFILER",
    "NCCL_INSPECTOR",
)


def apply_nccl_variable_rules(
    name: str, value: str, release: Release | None = None
) -> Iterator[RuleFinding]:
    """Yield the findings about one variable by itself. Names that are not NCCL's have none.
    `release` is the version of NCCL.
    """
    if not is_nccl_name(name):
        return
    row = find_variable(name)
    if row is None:
        yield from _unknown_name_findings(name)
        return
    subject = f"env.{name}"
    fault = row.fault(value, release)
    if fault is not None:
        yield from _value_findings(row, value, release)
    else:
        yield from _default_findings(row, value, release)
    yield from _deprecation_findings(row, release)
    if name == "NCCL_ALGO" and fault is None:
        yield from _algorithm_findings(value, release)
    if fault is None and needs_output_check(name, value):
        message = (
            f"`{name}={value}` allows LL128 where NCCL would not choose it: on hardware that does "
            "not keep the order of stores it silently corrupts data"
        )
        yield RuleFinding(
            "nccl_output_check",
            WARNING,
            subject,
            message,
            "compare this variant's output with the default's, or exclude it: NCCL_PROTO: ^LL128",
        )
    yield from _debug_findings(name, value)
    if files_needed({name: value}) and fault is None:
        message = (
            f"`{name}` names a file on the host: `{value}` must be readable on every host "
            "(in its container)"
        )
        yield RuleFinding(
            "nccl_host_file", INFO, subject, message, "preflight checks it before each launch"
        )


# read by NCCL's example tuner; NCCL itself documents no such variable
_PLUGIN_FILES = ("NCCL_TUNER_CONFIG_FILE",)


def files_needed(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (variable, path) of each file that NCCL reads for a job with `env`. The file must
    exist on the host, or in the job's container.
    """
    return tuple(
        (name, value)
        for name, value in env.items()
        if value and (name in _PLUGIN_FILES or _is_file(name, value))
    )


def _is_file(name: str, value: str) -> bool:
    row = find_variable(name)
    return (
        row is not None
        and isinstance(row.values, FilePathValue)
        and _is_read(name, row.values, value)
    )


def _is_read(name: str, values: FilePathValue, value: str) -> bool:
    """Return whether NCCL reads the file that a variable names.

    It does not read a file that it writes. A plug-in without a slash does not count, because the
    loader finds it.
    """
    return (
        "_DUMP_" not in name and name != "NCCL_DEBUG_FILE" and ("/" in value or not values.plugin)
    )


def _unknown_name_findings(name: str) -> Iterator[RuleFinding]:
    other, subject = foreign_owner(name), f"env.{name}"
    if other:
        if other.startswith(("PyTorch", "builds", "container")):
            yield RuleFinding(
                "nccl_not_read",
                WARNING,
                subject,
                f"NCCL does not read `{name}`: it is for {other}",
                "leave it out",
            )
    elif name in UNDOCUMENTED:
        message = (
            f"`{name}` is in NCCL's sources but in no documentation: any version may change or "
            "remove it"
        )
        yield RuleFinding("nccl_undocumented", INFO, subject, message)
    else:
        near = nearest_variable(name)
        message = (
            f"`{name[:80]}` is not a variable of NCCL or RCCL (up to {NEWEST_NCCL_READ}); "
            "it is passed on unchanged"
        )
        hint = f"did you mean `{near}`?" if near else "check its spelling"
        yield RuleFinding("nccl_unknown_variable", WARNING, subject, message, hint)


def _value_findings(
    row: NcclVariable, value: str, release: Release | None
) -> Iterator[RuleFinding]:
    fault = row.fault(value, release)
    assert fault is not None
    does = {
        InvalidValueEffect.REFUSED: "NCCL refuses the value and the server ends",
        InvalidValueEffect.IGNORED: "NCCL ignores it silently",
        InvalidValueEffect.MISREAD: "",
        InvalidValueEffect.ADJUSTED: "NCCL uses the nearest legal value",
        InvalidValueEffect.DISCOURAGED: "",
    }[fault.outcome]
    where = f" (NCCL {describe_versions(fault.versions)})" if fault.versions != _ANY else ""
    tail = f": {does}{where}" if does else ""
    code = (
        "nccl_level_number"
        if fault.outcome is InvalidValueEffect.DISCOURAGED
        else "nccl_illegal_value"
    )
    message = f"`{row.name}={value[:80]}`: {fault.problem}{tail}"
    yield RuleFinding(
        code, _severity(row, fault.outcome, fault.versions), f"env.{row.name}", message, fault.cure
    )


def _severity(row: NcclVariable, outcome: InvalidValueEffect, versions: VersionRange) -> str:
    """Return ERROR if every version refuses, ignores or misreads the value, else WARNING.

    Lists of words grow with each version, so an unknown word is only a WARNING.
    """
    if outcome in (InvalidValueEffect.ADJUSTED, InvalidValueEffect.DISCOURAGED) or versions != _ANY:
        return WARNING
    return WARNING if isinstance(row.values, NamesValue) else ERROR


def no_effect_reason(name: str, value: str, release: Release | None = None) -> str:
    """Return why setting `value` changes nothing for an SGLang server; empty if it changes
    something.

    The reason names NCCL's versions where they matter. SGLang sets some variables itself if the job
    does not set them. For such a variable, NCCL's own default is a change.
    """
    row = find_variable(name)
    if row is None or not value:
        return ""
    if name in DEFAULTS_WHEN_UNSET:
        return (
            f"SGLang sets {DEFAULTS_WHEN_UNSET[name]} itself if it is unset"
            if row.values.means_same(value, DEFAULTS_WHEN_UNSET[name])
            else ""
        )
    versions = row.equals_default(value, release)
    return (
        ""
        if versions is None
        else "it is NCCL's default"
        + (f" {describe_versions(versions)}" if versions != _ANY else "")
    )


def _default_findings(
    row: NcclVariable, value: str, release: Release | None
) -> Iterator[RuleFinding]:
    why = no_effect_reason(row.name, value, release)
    if why:
        yield RuleFinding(
            "nccl_default",
            INFO,
            f"env.{row.name}",
            f"`{row.name}={value}` changes nothing: {why}",
            "a variant with only this setting equals one without it",
        )


def _deprecation_findings(row: NcclVariable, release: Release | None) -> Iterator[RuleFinding]:
    instead = f"use {row.replaced_by} instead" if row.replaced_by else "leave it out"
    if row.deprecated is not None and row.deprecated.contains(release):
        message = f"`{row.name}` is deprecated {describe_versions(row.deprecated)}" + (
            f" in favour of `{row.replaced_by}`" if row.replaced_by else ""
        )
        yield RuleFinding(
            "nccl_deprecated",
            WARNING,
            f"env.{row.name}",
            message,
            f"{instead} ({row.note.rstrip('.')})" if row.note else instead,
        )
    elif row.exists.last:
        message = (
            f"`{row.name}` is only read {describe_versions(row.exists)}: "
            "no NCCL version that SGLang uses knows it"
        )
        yield RuleFinding("nccl_deprecated", WARNING, f"env.{row.name}", message, instead)


def _algorithm_findings(value: str, release: Release | None) -> Iterator[RuleFinding]:
    """Warn if NCCL_ALGO has no algorithm for some collective.

    From 2.24 NCCL no longer falls back to Ring. Without an algorithm for AllGather, every
    tensor-parallel server fails when it gathers the logits.
    """
    left_out = collectives_without_algorithm(value)
    serious = [function for function in left_out if function != "Reduce"]
    if serious and FUNCTION_LISTS.contains(release):
        fails = f"their first call makes the server fail (NCCL {FUNCTION_LISTS})"
        message = f"`NCCL_ALGO={value}` leaves {', '.join(left_out)} without an algorithm: {fails}"
        second = "" if "ring" in value.lower() else ",ring"
        hint = (
            f"restrict it to one collective: NCCL_ALGO: allreduce:{value.lower()}{second}"
            if ";" not in value and ":" not in value
            else "add ring for them"
        )
        yield RuleFinding("nccl_algorithm_missing", WARNING, "env.NCCL_ALGO", message, hint)


def _debug_findings(name: str, value: str) -> Iterator[RuleFinding]:
    if name == "NCCL_DEBUG" and value.strip().upper() in ("INFO", "TRACE"):
        message = f"`NCCL_DEBUG={value}` writes lines while requests are measured, which costs time"
        hint = (
            "leave it out: the agent makes NCCL log its variables at the start of each launch, "
            "and its choices in a witness launch"
        )
        yield RuleFinding("nccl_debug_cost", WARNING, "env.NCCL_DEBUG", message, hint)


def apply_nccl_server_rules(server: ServerConfiguration) -> Iterator[RuleFinding]:
    """Yield the findings about combinations of a server's variables."""
    least, most = (
        read_number(server.env.get(name, "")) for name in ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")
    )
    if least is not None and most is not None and least > most:
        message = (
            f"`NCCL_MIN_CTAS={least}` is above `NCCL_MAX_CTAS={most}`: NCCL uses {most} for both"
        )
        yield RuleFinding(
            "nccl_settings_disagree",
            WARNING,
            "env.NCCL_MIN_CTAS",
            message,
            "raise NCCL_MAX_CTAS, or lower NCCL_MIN_CTAS",
        )
    if server.env.get("NCCL_P2P_DISABLE", "").strip() == "1" and "NCCL_P2P_LEVEL" in server.env:
        message = "`NCCL_P2P_LEVEL` has no effect together with `NCCL_P2P_DISABLE=1`"
        yield RuleFinding(
            "nccl_settings_disagree", WARNING, "env.NCCL_P2P_LEVEL", message, "keep one of the two"
        )
    yield from _network_findings(server)


def _unused_by_one_host(server: ServerConfiguration) -> tuple[str, ...]:
    """Return the network variables that a server on one host does not use.

    Its ranks reach each other over NVLink, PCIe or shared memory, unless P2P and shared memory are
    both disabled.
    """
    forced = all(
        server.env.get(name, "").strip() == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
    )
    if forced or server.nodes > 1 or server.size("nnodes") > 1:
        return ()
    return tuple(
        name
        for name in server.env
        if name.startswith(_NETWORK_PREFIXES) and name not in _NETWORK_CHOICE
    )


def _network_findings(server: ServerConfiguration) -> Iterator[RuleFinding]:
    if names := _unused_by_one_host(server):
        message = (
            f"{', '.join(names)}: no effect on a server on one host, whose GPUs do not "
            "communicate over the network"
        )
        yield RuleFinding(
            "nccl_network_unused",
            INFO,
            f"env.{names[0]}",
            message,
            "a level of a factor that only sets this can be left out",
        )


def can_affect_speed(name: str) -> bool:
    """Return whether the name is an NCCL variable that can change NCCL's speed."""
    return is_nccl_name(name) and not name.startswith(_NO_SPEED_EFFECT)


@dataclass(frozen=True, slots=True)
class BypassedVariables:
    """NCCL variables of a server that may have no effect, because the all-reduce of its decode
    steps may not reach NCCL. `path` says what performs this all-reduce, and why.
    """

    variables: tuple[str, ...]
    path: allreduce_path.AllReducePath


def find_bypassed_variables(server: ServerConfiguration, topology: str) -> BypassedVariables | None:
    """Return the variables that may have no effect, because the all-reduce of decode steps may not
    reach NCCL.

    Return None if NCCL performs the all-reduce, or if no variable is set that could affect it.
    """
    unused_names = _unused_by_one_host(server)
    varied = tuple(
        name
        for name, value in server.env.items()
        if can_affect_speed(name) and name not in unused_names and not no_effect_reason(name, value)
    )
    if not varied or server.text("device") == "cpu":
        return None
    path = allreduce_path.find_all_reduce_path(_all_reduce_setup(server, topology))
    if path.answer is allreduce_path.NcclUse.REACHES or path.performed_by != "custom all-reduce":
        return None
    return BypassedVariables(varied, path)


def _all_reduce_setup(server: ServerConfiguration, topology: str) -> allreduce_path.AllReduceSetup:
    args: Mapping[str, object] = {"nnodes": server.nodes, **server.args}
    draft_tokens = (
        server.number("speculative_num_draft_tokens")
        or (server.number("speculative_num_steps") or 0) + 1
    )
    tokens = server.concurrency * max(draft_tokens, 1)
    return allreduce_path.AllReduceSetup(
        args, server.env, topology, step_tokens=tokens, release=server.release
    )
