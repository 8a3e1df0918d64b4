"""Owns the rules that span keys: engine, factors and measure of one job file, and the list of all rules; each yields findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from fleet_controller.core.job import Job
from fleet_controller.job_file import (
    argument_checks,
    checks_effect,
    checks_hosts,
    checks_launch,
    checks_limits,
    checks_nccl,
    checks_parallel,
    checks_speculation,
    engine_checks,
    workload_checks,
)
from fleet_controller.job_file.checks_unfilled import check_unfilled
from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.job_file.variant_checks import Arms
from fleet_controller.planning.job_plan import Variant
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import INFO, WARNING, Finding


def check(reading: Reading) -> Iterator[Finding]:
    """All findings of all rules that can be judged on what was read."""
    for rule in _RULES:
        yield from rule(reading)


def check_variants(reading: Reading, job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """All findings about whole variants, levels laid over the engine; only SGLang's arguments are known."""
    if reading.job.engine.kind == "sglang":
        for rule in _VARIANT_RULES:
            yield from rule(Arms(reading, job, variants))


def _baseline_names(reading: Reading) -> Iterator[Finding]:
    baseline = reading.job.baseline
    if baseline is None or not reading.is_sound(("baseline",)):
        return
    levels = reading.factor_levels()
    for factor, level in baseline.items():
        yield from _level_exists(reading, ("baseline", factor), factor, level)
    missing = [factor for factor in levels if factor not in baseline]
    if missing:
        hint = "add " + ", ".join(f"{factor}: {next(iter(levels[factor]), '…')}" for factor in missing)
        yield reading.finding("baseline_incomplete", ("baseline",), f"the baseline names no level of `{'`, `'.join(missing)}`", hint)


def _baseline_default(reading: Reading) -> Iterator[Finding]:
    if reading.job.baseline is None and reading.job.factors and reading.is_sound(("baseline",), ("factors",)):
        first = ", ".join(f"{factor}: {next(iter(levels))}" for factor, levels in reading.job.factors.items())
        message = "no baseline is named: the first level of each factor is taken"
        yield reading.finding("baseline_chosen", ("factors",), message, f"write baseline: {{{first}}}", severity=INFO, at_key=True)


def _exclude_names(reading: Reading) -> Iterator[Finding]:
    if not reading.is_sound(("exclude",)):
        return
    for index, part in enumerate(reading.job.exclude):
        if not part:
            yield reading.finding("no_trials", ("exclude", index), "an empty combination matches every variant", "remove it")
        for factor, level in part.items():
            yield from _level_exists(reading, ("exclude", index, factor), factor, level)


def _level_exists(reading: Reading, path: Path, factor: str, level: str) -> Iterator[Finding]:
    levels = reading.factor_levels()
    if factor not in levels:
        if reading.is_sound(("factors", factor)):
            yield reading.finding("unknown_factor", path, f"there is no factor `{factor}`", _near(factor, levels), at_key=True)
    elif level not in levels[factor] and ("factors", factor, level) not in reading.broken:
        yield reading.finding("unknown_level", path, f"factor `{factor}` has no level `{level}`", _near(level, levels[factor]))


def _near(word: str, known: Mapping[str, object]) -> str:
    found = get_close_matches(word, list(known), n=1, cutoff=0.6) if len(word) <= 64 else []
    return f"did you mean `{found[0]}`?" if found else f"there are: {', '.join(known)}" if known else "there are none: `factors` is empty"


def _runs_order(reading: Reading) -> Iterator[Finding]:
    runs = reading.job.measure.runs
    path = ("measure", "runs")
    if runs.max is not None and runs.min > runs.max and reading.is_sound(path):
        at = (*path, "min") if reading.is_written((*path, "min")) else (*path, "max")
        message = f"at least {runs.min} runs are asked for, but at most {runs.max}"
        yield reading.finding("runs_order", at, message, f"raise max to {runs.min} or more, or lower min")


def _launches(reading: Reading) -> Iterator[Finding]:
    path, job = ("measure", "launches"), reading.job
    if not reading.is_sound(path, ("engine", "kind")):
        return
    if job.engine.kind == "external":
        message = "an external server is measured as it runs: there are no launches, so no verdict about launches"
        yield reading.finding("no_launches", path if reading.is_written(path) else ("engine", "kind"), message, severity=INFO)
    elif job.measure.launches == 1:
        message = "one launch of each variant gives no interval: launches differ, so every verdict will be INCONCLUSIVE"
        yield reading.finding("no_interval", path, message, "three launches are the least that tells something", severity=WARNING)


_RULES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (
    engine_checks.check_kind,
    engine_checks.check_levels,
    argument_checks.check_arguments,
    argument_checks.check_variables,
    checks_nccl.check_variables,
    checks_launch.check_container,
    checks_launch.check_secrets,
    checks_hosts.check,
    check_unfilled,
    _baseline_names,
    _baseline_default,
    _exclude_names,
    workload_checks.check,
    _runs_order,
    _launches,
)

_VARIANT_RULES: tuple[Callable[[Arms], Iterator[Finding]], ...] = (
    checks_speculation.check,
    checks_parallel.check,
    checks_limits.check,
    checks_effect.check,
    checks_nccl.check,
)
