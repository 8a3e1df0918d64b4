"""Owns the rules on a server's limits against the load asked for, as findings about variants."""

from __future__ import annotations

from collections.abc import Iterator

from fleet_controller.job_file.variant_checks import VariantSet, remark_findings
from fleet_controller.yaml.findings import Finding
from fleet_knowledge.sglang import capacity_rules


def check_server_limits(variant_set: VariantSet) -> Iterator[Finding]:
    """What to tell about the limits of all variants."""
    yield from remark_findings(variant_set, (capacity_rules.apply_capacity_rules,))
