"""What Prometheus sees of trials and runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleet_protos import metric_names as names
from fleet_protos.prometheus_series import RunSeries
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
    Workload,
)

SCRAPE_FILE = Path(__file__).parents[2] / "deploy" / "prometheus.yml"

SPEC = TrialSpec(
    trial_id="t", job_name="job", variant="v", engine=EngineSpec(kind=EngineKind.SIMULATED)
)
RUN = RunResult(
    "single",
    1,
    metrics={
        names.OUTPUT_TOK_S: 88.8,
        names.TTFT_P50: 0.05,
        names.TPOT_MEAN: 0.011,
        names.ACCEPT_LENGTH: 1.9,
    },
)
LABELS = {"host": "here", "job": "job", "variant": "v", "workload": "single", "engine": "simulated"}


def samples(series: RunSeries) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(series.registry).decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in found}


def value(series: RunSeries, name: str, **labels: str) -> float | None:
    return samples(series).get((name, tuple(sorted(labels.items()))))


def test_a_run_shows_its_last_numbers_under_bounded_labels() -> None:
    series = RunSeries()
    series.record_run(SPEC, RUN, "here")
    assert value(series, names.PROM_OUTPUT_TOK_S, **LABELS) == 88.8
    assert value(series, names.PROM_TTFT_P50, **LABELS) == 0.05
    assert value(series, names.PROM_TPOT_MEAN, **LABELS) == 0.011
    assert value(series, names.PROM_ACCEPT_LENGTH, **LABELS) == 1.9
    assert value(series, names.PROM_RUNS, **LABELS, void="false") == 1


def test_a_void_run_is_counted_and_never_a_number() -> None:
    series = RunSeries()
    void = RunResult(
        "single", 1, metrics=RUN.metrics, gates=(Gate("short_output", GateEffect.VOID_RUN, ""),)
    )
    series.record_run(SPEC, void, "here")
    assert value(series, names.PROM_RUNS, **LABELS, void="true") == 1
    assert value(series, names.PROM_OUTPUT_TOK_S, **LABELS) is None


def test_counts_are_shown_at_zero_before_the_first_run_and_the_first_end() -> None:
    series = RunSeries()
    series.expect_runs(replace(SPEC, workloads=(Workload("single"), Workload("batch"))), "here")
    for void in ("true", "false"):
        assert value(series, names.PROM_RUNS, **LABELS, void=void) == 0
        assert value(series, names.PROM_RUNS, **{**LABELS, "workload": "batch"}, void=void) == 0
    for outcome in ("ok", "failed", "cancelled"):
        assert value(series, names.PROM_TRIALS, phase="over", outcome=outcome) == 0
    series.record_run(SPEC, RUN, "here")
    assert value(series, names.PROM_RUNS, **LABELS, void="false") == 1


def test_the_shipped_scrape_file_takes_the_series_of_runs_from_one_side_only() -> None:
    controller, agent = yaml.safe_load(SCRAPE_FILE.read_text())["scrape_configs"]
    (drop,) = agent["metric_relabel_configs"]
    assert (drop["action"], controller.get("metric_relabel_configs")) == ("drop", None)
    series = RunSeries()
    series.record_run(SPEC, RUN, "here")
    exported = {name for name, _ in samples(series)}
    assert len(exported) > 5
    assert [name for name in exported if not re.fullmatch(drop["regex"], name)] == []
    assert not re.fullmatch(drop["regex"], names.PROM_HOSTS)


def test_trials_are_counted_where_they_are_now() -> None:
    series = RunSeries()
    for phase in (Phase.LAUNCHING, Phase.LAUNCHING, Phase.MEASURING):
        series.record_trial("t/1", phase)
    series.record_trial("u/1", Phase.OVER, Outcome.OK)
    assert value(series, names.PROM_TRIALS, phase="launching", outcome="none") == 0
    assert value(series, names.PROM_TRIALS, phase="measuring", outcome="none") == 1
    assert value(series, names.PROM_TRIALS, phase="over", outcome="ok") == 1
