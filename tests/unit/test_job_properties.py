"""Whatever the bytes, reading a job file ends in a job or in findings with a place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.findings import ERROR, JobRejected

SEED = (Path(__file__).parents[2] / "examples" / "kimi-eagle3-nccl.yaml").read_text()
MARKS = st.sampled_from(
    ["*x", "&x ", "<<: ", "!!int ", "!foo ", "[", "{", "}", "]", ": ", "- ", "? ", "\t", "\n", "'", '"', "|\n", "%YAML 1.1\n", "---\n",
     "0x", "1e999", ".nan", "~", "true", "\\", "#", "@", "\x85", "\ufeff", "\u2028", "9" * 30]
)  # fmt: skip
KEYS = st.sampled_from(
    ["name", "model", "path", "engine", "kind", "url", "args", "env", "gpus", "simulation", "factors", "baseline", "exclude", "workloads",
     "concurrency", "rate", "duration", "output_tokens", "measure", "runs", "min", "max", "launches", "hosts", "labels", "x-a", "<<", "a",
     "ramp", "start", "end", "arrivals", "burstiness", "trace", "speed", "prompts", "input_tokens", "uniform", "lognormal", "median",
     "sigma", "mix", "weight", "shared_prefix", "groups", "tokens", "cache", "sessions", "turns", "think_time", "search", "of", "from",
     "to", "within", "goodput", "slo", "ttft_p99"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["Job", "sglang", "external", "2%", "30m", "random", "gamma", "file:a.txt", "flush"]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), WORDS
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=25,
)


def findings_are_sound(content: str | bytes) -> None:
    try:
        loaded = load_job(content, "f")
    except JobRejected as rejected:
        lines = len(content.splitlines()) + 2
        assert any(finding.severity == ERROR for finding in rejected.findings)
        assert all(
            1 <= finding.line <= lines and finding.column >= 1 and finding.message
            for finding in rejected.findings
        )
    else:
        assert all(finding.severity != ERROR for finding in loaded.findings)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_with_findings(content: bytes) -> None:
    findings_are_sound(content)


@given(st.text(max_size=300))
def test_arbitrary_text_is_refused_with_findings(content: str) -> None:
    findings_are_sound(content)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_job_is_read_or_refused_with_findings(data: st.DataObject) -> None:
    text = SEED
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.one_of(MARKS, st.just(""))) + text[at + removed :]
    findings_are_sound(text)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=8))
def test_any_tree_under_known_keys_is_read_or_refused_with_findings(tree: dict[str, Any]) -> None:
    head = {"apiVersion": "benchfleet/v1", "kind": "Job"}
    findings_are_sound(json.dumps(head | tree))
