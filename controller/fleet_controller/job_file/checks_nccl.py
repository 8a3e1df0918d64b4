"""Owns the rules about NCCL's variables: each as written, those of a whole variant, levels whose all-reduce never reaches NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet_controller.job_file.argument_checks import layers
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.job_file.variant_checks import Arms, told
from fleet_controller.planning.equivalence import configuration
from fleet_controller.planning.job_plan import Variant
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_knowledge.nccl import variable_rules
from fleet_knowledge.nccl.allreduce_path import Answer


def check_variables(reading: Reading) -> Iterator[Finding]:
    """Names and values as they are written: illegal, outdated, without effect, costly."""
    if reading.job.engine.kind != "sglang":
        return
    for path, env in layers(reading, "env"):
        for name, value in env.items():
            if isinstance(value, str):
                for remark in variable_rules.of_variable(name, value):
                    where = (*path, name)
                    yield reading.finding(remark.code, where, remark.message, remark.hint, severity=remark.severity, at_key=True)


def check(arms: Arms) -> Iterator[Finding]:
    """What the variables of one variant do beside each other, and levels that cannot matter."""
    yield from told(arms, (variable_rules.of_server,))
    yield from _passed_by(arms)


def _passed_by(arms: Arms) -> Iterator[Finding]:
    """One finding for each place that sets variables which decode's all-reduce never meets."""
    found: dict[Path, tuple[variable_rules.Passed, Variant]] = {}
    others: set[Path] = set()
    topology = topology_of(arms.job.hosts.labels)
    for variant in arms.variants:
        passed = variable_rules.passed_by(configuration(arms.job, variant), topology)
        for path in _places(arms.reading, variant):
            if passed is None:
                others.add(path)
            else:
                found.setdefault(path, (passed, variant))
    for path, (passed, variant) in found.items():
        yield _finding(arms, path, passed, variant if path in others else None)


def _places(reading: Reading, variant: Variant) -> Iterator[Path]:
    """Levels of the variant that set a variable which could change NCCL's speed; what all variants share compares nothing."""
    for path, env in layers(reading, "env"):
        mine = path[0] == "factors" and variant.levels.get(str(path[1])) == path[2]
        if mine and any(isinstance(value, str) and variable_rules.can_matter(name) for name, value in env.items()):
            yield path


def _finding(arms: Arms, path: Path, passed: variable_rules.Passed, only: Variant | None) -> Finding:
    set_here = [name for layer, env in layers(arms.reading, "env") if layer == path for name in env if name in passed.variables]
    sure = passed.path.answer is Answer.BYPASSED
    effect = "cannot matter to decoding" if sure else "may not matter to decoding"
    message = f"`{'`, `'.join(set_here[:6])}` {effect}: {passed.path.reason}" + (f" (variant {only.name})" if only else "")
    levels = only.levels if only else {str(path[1]): str(path[2])}
    entry = ", ".join(f"{factor}: {level}" for factor, level in levels.items())
    instead = f"leave the arm out with `exclude: [{{{entry}}}]`"
    hint = f"{instead}, or give the all-reduce to NCCL with disable_custom_all_reduce: true in args"
    if not sure:
        hint = f"where that is so, {hint}; `interconnect: nvlink` or `pcie` in hosts.labels tells lint which it is"
    return arms.reading.finding("nccl_bypassed", path[:3], message, hint, severity=WARNING if sure else INFO, at_key=True)


def topology_of(labels: Mapping[str, str]) -> str:
    """How the GPUs of hosts with these labels are joined, as far as the labels say: nvlink, pcie or unknown."""
    words = " ".join((*labels, *labels.values())).lower()
    if "nvlink" in words or "sxm" in words:
        return "nvlink"
    return "pcie" if "pcie" in words else "unknown"
