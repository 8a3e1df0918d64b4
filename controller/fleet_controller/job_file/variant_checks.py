"""Checks whole variants: speculation, parallel sizes, server limits, NCCL variables, and variants
that run the same server. Each finding is placed at the setting that causes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from fleet_controller.core.job import Job
from fleet_controller.job_file.argument_checks import setting_layers
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.sglang_arguments import resolve_name
from fleet_controller.planning.equivalence import (
    EquivalentVariant,
    equivalent_variants,
    launch_configuration,
)
from fleet_controller.planning.variants import Variant
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath
from fleet_knowledge.nccl import variable_rules
from fleet_knowledge.nccl.allreduce_path import NcclUse
from fleet_knowledge.server_configuration import ERROR, RuleFinding, ServerConfiguration
from fleet_knowledge.sglang import capacity_rules, environment_rules, parallelism
from fleet_knowledge.sglang.speculation import speculation_rules
from fleet_knowledge.sglang.speculation.algorithms import is_eagle3_config, names_eagle3
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT,
    canonical_algorithm,
)
from fleet_protos.regular_file import open_regular_file

RemarkRule = Callable[[ServerConfiguration], Iterable[RuleFinding]]
_Key = tuple[KeyPath, str, str, str, str]

_LARGEST_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VariantSet:
    """The variants of one parsed job, in the planner's form."""

    parsed: ParsedJob
    job: Job
    variants: Sequence[Variant]


def remark_findings(variant_set: VariantSet, rules: Sequence[RemarkRule]) -> Iterator[Finding]:
    """Yield the remarks of `rules` on all variants as findings. Each remark is reported once, at
    the setting that causes it. If it applies to only some of the variants with that setting, its
    message names them.
    """
    places = _SettingPaths(variant_set.parsed)
    found: dict[_Key, list[Variant]] = {}
    paths: dict[KeyPath, int] = {}
    for variant in variant_set.variants:
        asked = launch_configuration(variant_set.job, variant)
        seen: set[KeyPath] = set()
        for remark in (remark for rule in rules for remark in rule(asked)):
            path = places.path_of(remark.subject, variant)
            key = (path, remark.code, remark.severity, remark.message, remark.hint)
            found.setdefault(key, []).append(variant)
            seen.add(path)
        for path in seen:
            paths.setdefault(path, sum(_has_setting(path, other) for other in variant_set.variants))
    for (path, code, severity, message, hint), having in found.items():
        among = (
            ""
            if len(having) >= paths[path]
            else f" (variant {having[0].name}{_and_more(len(having) - 1)})"
        )
        at_key = len(path) == 4 and path[0] == "factors"
        yield variant_set.parsed.finding(
            code,
            path,
            message + among,
            hint,
            severity=severity,
            at_key=at_key or path[-1:] == ("gpus",),
        )


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""


def _has_setting(path: KeyPath, variant: Variant) -> bool:
    """Return True if `path` belongs to the engine or to a level of the variant."""
    return path[0] != "factors" or variant.levels.get(str(path[1])) == path[2]


class _SettingPaths:
    """Finds where the job file sets an argument or a variable, by the name that the server uses."""

    def __init__(self, parsed: ParsedJob) -> None:
        self._parsed = parsed
        self._layers: dict[tuple[str, ...], dict[str, KeyPath]] = {}
        for kind in ("args", "env"):
            for path, settings in setting_layers(parsed, kind):
                layer = self._layers.setdefault(tuple(map(str, path[:-1])), {})
                for written in settings:
                    layer[f"{kind}.{resolve_name(written).name if kind == 'args' else written}"] = (
                        *path,
                        written,
                    )

    def path_of(self, subject: str, variant: Variant) -> KeyPath:
        """Return the path of `subject` in the last layer of the variant that sets it. If no layer
        sets it, return the engine's path.
        """
        if subject == "concurrency":
            return self._busiest_workload()
        if subject == "gpus":
            return ("engine", "gpus")
        found = self._layers.get(("engine",), {}).get(subject)
        for factor, level in variant.levels.items():
            found = self._layers.get(("factors", factor, level), {}).get(subject, found)
        return found or ("engine",)

    def _busiest_workload(self) -> KeyPath:
        def most(name: str) -> int:
            listed = self._parsed.job.workloads[name].concurrency
            return (
                max(listed)
                if isinstance(listed, tuple) and listed
                else listed
                if isinstance(listed, int)
                else 0
            )

        return ("workloads", max(self._parsed.job.workloads, key=most), "concurrency")


def level_path(parsed: ParsedJob, levels: Mapping[str, str]) -> KeyPath:
    """Return the path of the level that comes last in the job file, among the given levels."""
    paths: list[KeyPath] = [("factors", factor, level) for factor, level in levels.items()]
    return max(
        paths, key=lambda path: parsed.document.place(path, at_key=True), default=("factors",)
    )


def check_ineffective_settings(variant_set: VariantSet) -> Iterator[Finding]:
    """Check environment variables that SGLang overwrites or that contradict arguments. Also report
    variants that run the same server as another variant. Variants that one `exclude` entry would
    remove share a finding.
    """
    yield from remark_findings(variant_set, (environment_rules.apply_environment_rules,))
    groups: dict[tuple[tuple[str, str], ...], list[EquivalentVariant]] = {}
    for twin in equivalent_variants(variant_set.job, variant_set.variants):
        groups.setdefault(tuple(twin.exclude.items()), []).append(twin)
    for entry, group in groups.items():
        yield _ineffective_finding(variant_set, dict(entry), group)


def _ineffective_finding(
    variant_set: VariantSet, entry: Mapping[str, str], group: list[EquivalentVariant]
) -> Finding:
    first = group[0]
    more = f" (and {len(group) - 1} more like it)" if len(group) > 1 else ""
    message = (
        f"`{first.variant.name}` runs the same server as `{first.same_as.name}`{more}: {first.why}"
    )
    written = ", ".join(f"{factor}: {level}" for factor, level in entry.items())
    hint = (
        f"leave the variant out with `exclude: [{{{written}}}]` or `--prune`; keep it only for an "
        "A/A comparison"
    )
    return variant_set.parsed.finding(
        "arm_without_effect",
        level_path(variant_set.parsed, _differing_levels(first)),
        message,
        hint,
        severity=WARNING,
        at_key=True,
    )


def _differing_levels(twin: EquivalentVariant) -> Mapping[str, str]:
    return {
        factor: level
        for factor, level in twin.variant.levels.items()
        if twin.same_as.levels.get(factor) != level
    }


def check_server_limits(variant_set: VariantSet) -> Iterator[Finding]:
    """Check the limits of each variant's server against the load of the workloads."""
    yield from remark_findings(variant_set, (capacity_rules.apply_capacity_rules,))


def check_parallel_sizes(variant_set: VariantSet) -> Iterator[Finding]:
    """Check the parallel sizes of each variant against its GPUs and hosts."""
    yield from remark_findings(variant_set, (parallelism.apply_parallelism_rules,))


def check_speculation(variant_set: VariantSet) -> Iterator[Finding]:
    """Check the speculation settings of each variant, and the draft model's config.json if it is on
    this machine.
    """
    yield from remark_findings(
        variant_set, (speculation_rules.apply_speculation_rules, draft_config)
    )


def draft_config(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    """Report the algorithm EAGLE for a draft model with a config.json that says EAGLE-3, if the
    draft's folder is on this machine.
    """
    draft = asked.text(DRAFT)
    if (
        canonical_algorithm(asked.text(ALGORITHM)) == "EAGLE"
        and draft
        and not names_eagle3(draft)
        and is_eagle3_config(_read_draft_config(draft))
    ):
        message = (
            f"{asked.text(ALGORITHM)} is given for a draft whose config.json says EAGLE-3 "
            f"(`{draft[-80:]}`): the server starts healthy"
            " and accepts exactly 1.00 tokens, so nothing is gained and the measurement is invalid"
        )
        yield RuleFinding(
            "spec_eagle3_as_eagle",
            ERROR,
            f"args.{ALGORITHM}",
            message,
            f"write {ALGORITHM}: EAGLE3",
        )


def _read_draft_config(draft: str) -> dict[str, object]:
    """Return the draft model's config.json, or {} if it is not on this machine or is not a JSON
    mapping.
    """
    try:
        with open_regular_file(FilePath(draft).expanduser() / "config.json") as stream:
            content = json.loads(stream.read(_LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RuntimeError):
        return {}
    return content if isinstance(content, dict) else {}


def check_nccl_variables(parsed: ParsedJob) -> Iterator[Finding]:
    """Report NCCL variables that are invalid, outdated, without effect or costly, at the place
    where each is written.
    """
    if parsed.job.engine.kind != "sglang":
        return
    for path, env in setting_layers(parsed, "env"):
        for name, value in env.items():
            if isinstance(value, str):
                for remark in variable_rules.apply_nccl_variable_rules(name, value):
                    where = (*path, name)
                    yield parsed.finding(
                        remark.code,
                        where,
                        remark.message,
                        remark.hint,
                        severity=remark.severity,
                        at_key=True,
                    )


def check_nccl_variants(variant_set: VariantSet) -> Iterator[Finding]:
    """Check the NCCL variables of each variant together. Also report levels that cannot change
    anything.
    """
    yield from remark_findings(variant_set, (variable_rules.apply_nccl_server_rules,))
    yield from _check_bypassed_settings(variant_set)


def _check_bypassed_settings(variant_set: VariantSet) -> Iterator[Finding]:
    """Yield one finding for each level that sets variables which the all-reduce of decoding never
    uses.
    """
    found: dict[KeyPath, tuple[variable_rules.BypassedVariables, Variant]] = {}
    others: set[KeyPath] = set()
    topology = interconnect_of_labels(variant_set.job.hosts.labels)
    for variant in variant_set.variants:
        passed = variable_rules.find_bypassed_variables(
            launch_configuration(variant_set.job, variant), topology
        )
        for path in _nccl_level_paths(variant_set.parsed, variant):
            if passed is None:
                others.add(path)
            else:
                found.setdefault(path, (passed, variant))
    for path, (passed, variant) in found.items():
        yield _bypassed_finding(variant_set, path, passed, variant if path in others else None)


def _nccl_level_paths(parsed: ParsedJob, variant: Variant) -> Iterator[KeyPath]:
    """Yield the paths of the variant's levels that set a variable which could change NCCL's speed.
    Settings of the engine are left out, because all variants share them.
    """
    for path, env in setting_layers(parsed, "env"):
        mine = path[0] == "factors" and variant.levels.get(str(path[1])) == path[2]
        if mine and any(
            isinstance(value, str) and variable_rules.can_affect_speed(name)
            for name, value in env.items()
        ):
            yield path


def _bypassed_finding(
    variant_set: VariantSet,
    path: KeyPath,
    passed: variable_rules.BypassedVariables,
    only: Variant | None,
) -> Finding:
    set_here = [
        name
        for layer, env in setting_layers(variant_set.parsed, "env")
        if layer == path
        for name in env
        if name in passed.variables
    ]
    sure = passed.path.answer is NcclUse.BYPASSED
    effect = "cannot affect decoding" if sure else "may not affect decoding"
    message = f"`{'`, `'.join(set_here[:6])}` {effect}: {passed.path.reason}" + (
        f" (variant {only.name})" if only else ""
    )
    levels = only.levels if only else {str(path[1]): str(path[2])}
    entry = ", ".join(f"{factor}: {level}" for factor, level in levels.items())
    instead = f"leave the variant out with `exclude: [{{{entry}}}]`"
    hint = (
        f"{instead}, or make NCCL do the all-reduce with `disable_custom_all_reduce: true` in args"
    )
    if not sure:
        hint = (
            "write `interconnect: nvlink` or `interconnect: pcie` in hosts.labels, so that lint "
            f"knows whether the variable has an effect; if it has none, {hint}"
        )
    return variant_set.parsed.finding(
        "nccl_bypassed", path[:3], message, hint, severity=WARNING if sure else INFO, at_key=True
    )


def interconnect_of_labels(labels: Mapping[str, str]) -> str:
    """Return how the GPUs of hosts with these labels are connected, as far as the labels say:
    `nvlink`, `pcie` or `unknown`.
    """
    words = " ".join((*labels, *labels.values())).lower()
    if "nvlink" in words or "sxm" in words:
        return "nvlink"
    return "pcie" if "pcie" in words else "unknown"
