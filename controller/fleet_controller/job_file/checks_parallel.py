"""Owns the rules on parallel sizes, GPUs and hosts as findings about variants; the rules themselves
are facts about SGLang.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_controller.job_file.variant_checks import VariantSet, remark_findings
from fleet_controller.yaml.findings import Finding
from fleet_knowledge.sglang import parallelism


def check_parallel_sizes(variant_set: VariantSet) -> Iterator[Finding]:
    """What to tell about the parallel sizes of all variants."""
    yield from remark_findings(variant_set, (parallelism.apply_parallelism_rules,))
