"""Owns the rules about NCCL's variables: each as written, those of a whole variant, levels whose
all-reduce never reaches NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet_controller.job_file.argument_checks import setting_layers
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.variant_checks import VariantSet, remark_findings
from fleet_controller.planning.equivalence import configuration
from fleet_controller.planning.job_plan import Variant
from fleet_controller.yaml.document import KeyPath
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_knowledge.nccl import variable_rules
from fleet_knowledge.nccl.allreduce_path import NcclUse


def check_nccl_variables(parsed: ParsedJob) -> Iterator[Finding]:
    """Names and values as they are written: illegal, outdated, without effect, costly."""
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
    """What the variables of one variant do beside each other, and levels that cannot matter."""
    yield from remark_findings(variant_set, (variable_rules.apply_nccl_server_rules,))
    yield from _check_bypassed_settings(variant_set)


def _check_bypassed_settings(variant_set: VariantSet) -> Iterator[Finding]:
    """One finding for each place that sets variables which decode's all-reduce never meets."""
    found: dict[KeyPath, tuple[variable_rules.BypassedVariables, Variant]] = {}
    others: set[KeyPath] = set()
    topology = interconnect_of_labels(variant_set.job.hosts.labels)
    for variant in variant_set.variants:
        passed = variable_rules.find_bypassed_variables(
            configuration(variant_set.job, variant), topology
        )
        for path in _nccl_level_paths(variant_set.parsed, variant):
            if passed is None:
                others.add(path)
            else:
                found.setdefault(path, (passed, variant))
    for path, (passed, variant) in found.items():
        yield _bypassed_finding(variant_set, path, passed, variant if path in others else None)


def _nccl_level_paths(parsed: ParsedJob, variant: Variant) -> Iterator[KeyPath]:
    """Levels of the variant that set a variable which could change NCCL's speed; what all variants
    share compares nothing.
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
    effect = "cannot matter to decoding" if sure else "may not matter to decoding"
    message = f"`{'`, `'.join(set_here[:6])}` {effect}: {passed.path.reason}" + (
        f" (variant {only.name})" if only else ""
    )
    levels = only.levels if only else {str(path[1]): str(path[2])}
    entry = ", ".join(f"{factor}: {level}" for factor, level in levels.items())
    instead = f"leave the arm out with `exclude: [{{{entry}}}]`"
    hint = f"{instead}, or give the all-reduce to NCCL with disable_custom_all_reduce: true in args"
    if not sure:
        hint = f"where that is so, {hint}; `interconnect: nvlink` or `pcie` in hosts.labels tells lint which it is"
    return variant_set.parsed.finding(
        "nccl_bypassed", path[:3], message, hint, severity=WARNING if sure else INFO, at_key=True
    )


def interconnect_of_labels(labels: Mapping[str, str]) -> str:
    """How the GPUs of hosts with these labels are joined, as far as the labels say: nvlink, pcie or
    unknown.
    """
    words = " ".join((*labels, *labels.values())).lower()
    if "nvlink" in words or "sxm" in words:
        return "nvlink"
    return "pcie" if "pcie" in words else "unknown"
