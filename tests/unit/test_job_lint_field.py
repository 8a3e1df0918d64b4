"""Cases from the field that a job file shows before any launch: what `fleetctl lint`, `plan
--prune` and the sweep say of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_controller.importers.sweep_job import sweep_job
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.equivalence import equivalent_variants
from fleet_controller.planning.variants import make_variants
from fleet_controller.yaml.findings import Finding, JobRejected
from fleet_knowledge.sglang.speculation.sweep_notation import distinct_servers, expand_sweep

DATA = Path(__file__).parent / "data" / "field"
SWEEP: dict[str, Any] = json.loads((DATA / "G08.json").read_text())
JOBS = [
    (name, job)
    for name in ("lint-A13", "lint-A15")
    for job in json.loads((DATA / f"{name}.json").read_text())["jobs"]
]
NAMES = ("first", "second", "third", "fourth", "fifth")


def job_text(
    engine: dict[str, Any], model: str = "/models/llama", factors: dict[str, Any] | None = None
) -> str:
    job: dict[str, Any] = {
        "apiVersion": "benchfleet/v1",
        "kind": "Job",
        "name": "case",
        "model": {"path": model},
    }
    job["engine"] = {"kind": "sglang", **engine}
    job["workloads"] = {"single": {"concurrency": 1, "output_tokens": 50}}
    if factors:
        job |= {
            "factors": factors,
            "baseline": {factor: next(iter(levels)) for factor, levels in factors.items()},
        }
    return json.dumps(job)


def findings(text: str) -> tuple[Finding, ...]:
    try:
        return load_job(text, "job.yaml").findings
    except JobRejected as rejected:
        return rejected.findings


@pytest.mark.parametrize(
    ("name", "job"), JOBS, ids=[f"{name}-{index}" for index, (name, _) in enumerate(JOBS)]
)
def test_lint_tells_what_the_server_would_refuse(name: str, job: dict[str, Any]) -> None:
    place = {"container": {"image": job["image"]}} if "image" in job else {"python": "python3"}
    told = findings(
        job_text({**place, "args": job["args"], "env": job.get("env", {})}, job["model"])
    )
    found = [
        (finding.code, finding.severity) for finding in told if finding.code.startswith("spec_")
    ]
    assert found == ([(job["code"], job["severity"])] if job["code"] else [])
    assert [
        finding.hint
        for finding in told
        if finding.code == job["code"] and job["hint"] not in finding.hint
    ] == []


def test_a_sweep_says_what_each_entry_becomes() -> None:
    points = expand_sweep(SWEEP["input"])
    assert [point.to_json() for point in points] == SWEEP["expected"]["expanded"]
    assert len(distinct_servers(points)) == SWEEP["expected"]["servers"]


def sweep_levels() -> dict[str, Any]:
    levels: dict[str, Any] = {}
    for name, entry in zip(NAMES, SWEEP["input"], strict=True):
        _, steps, topk, tokens = map(int, entry.split(","))
        sizes = {
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": tokens,
        }
        draft = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "/d/eagle3"}
        levels[name] = {"args": {**draft, **sizes}} if steps else {}
    return levels


def test_lint_of_a_sweep_written_as_levels_finds_the_entry_that_repeats_another() -> None:
    expected = SWEEP["expected"]["lint"]
    text = job_text({"python": "python3"}, factors={"speculation": sweep_levels()})
    told = findings(text)
    assert [finding.key for finding in told if finding.code == "arm_without_effect"] == [
        "factors.speculation.third"
    ]
    assert [
        finding.key.rpartition(".")[2] for finding in told if finding.code == "spec_tree_overflow"
    ] == [expected["overflow"]]
    job = load_job(text, "job.yaml").job
    found = equivalent_variants(job, make_variants(job))
    assert [twin.variant.name for twin in found] == expected["pruned"]
    assert [twin.same_as.name for twin in found] == expected["same_as"]


def test_the_job_made_of_a_sweep_has_a_level_for_each_server_and_no_arm_without_effect() -> None:
    points = expand_sweep(SWEEP["input"])
    filled = (
        sweep_job(points).replace("$MODEL", "/models/a").replace("$DRAFT_MODEL", "/models/a-eagle3")
    )
    loaded = load_job(filled, "job.yaml")
    assert list(loaded.job.factors["speculation"]) == ["none", "s5-k1-d6", "s4-k2-d8", "s2-k3-d20"]
    assert [workload.concurrency for workload in loaded.job.workloads] == [1, 2, 8]
    assert {finding.code for finding in loaded.findings} == {"spec_tree_overflow"}
