"""Owns the rules on what takes effect: variables that SGLang overwrites or contradict arguments,
and variants without an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet_controller.job_file.variant_checks import VariantSet, level_path, remark_findings
from fleet_controller.planning.equivalence import EquivalentVariant, equivalent_variants
from fleet_controller.yaml.findings import WARNING, Finding
from fleet_knowledge.sglang import environment_rules


def check_ineffective_settings(variant_set: VariantSet) -> Iterator[Finding]:
    """What to tell about variables, and each group of variants that one entry of `exclude` leaves
    out.
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
        f"leave it out with `exclude: [{{{written}}}]`, or with --prune; keep it only as an A/A arm"
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
