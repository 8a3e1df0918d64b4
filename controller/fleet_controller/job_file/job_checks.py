"""Checks rules that span several keys of a job file, and lists all rules. Each rule yields
findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from fleet_controller.core.job import Job
from fleet_controller.job_file.argument_checks import (
    check_arguments,
    check_unexpanded_variables,
    check_variables,
)
from fleet_controller.job_file.engine_checks import (
    check_container,
    check_kind,
    check_levels,
    check_secrets,
)
from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.job_file.variant_checks import (
    VariantSet,
    check_ineffective_settings,
    check_nccl_variables,
    check_nccl_variants,
    check_parallel_sizes,
    check_server_limits,
    check_speculation,
)
from fleet_controller.job_file.workload_checks import check_workloads
from fleet_controller.planning.variants import Variant
from fleet_controller.yaml.findings import INFO, WARNING, Finding
from fleet_controller.yaml.key_path import KeyPath

_SHARE_PATH = ("hosts", "share")


def check_job(parsed: ParsedJob) -> Iterator[Finding]:
    """Yield the findings of every rule, as far as the readable part of the job file allows the
    check.
    """
    for rule in _RULES:
        yield from rule(parsed)


def check_variants(parsed: ParsedJob, job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """Yield the findings about whole variants (levels laid over the engine). Such rules exist only
    for SGLang, because only its arguments are known.
    """
    if parsed.job.engine.kind == "sglang":
        for rule in _VARIANT_RULES:
            yield from rule(VariantSet(parsed, job, variants))


def _check_baseline(parsed: ParsedJob) -> Iterator[Finding]:
    baseline = parsed.job.baseline
    if baseline is None or not parsed.is_sound(("baseline",)):
        return
    levels = parsed.factor_levels()
    for factor, level in baseline.items():
        yield from _check_level_exists(parsed, ("baseline", factor), factor, level)
    missing = [factor for factor in levels if factor not in baseline]
    if missing:
        names = "`, `".join(missing)
        hint = "add " + ", ".join(
            f"{factor}: {next(iter(levels[factor]), '…')}" for factor in missing
        )
        yield parsed.finding(
            "baseline_incomplete",
            ("baseline",),
            f"the baseline has no level for `{names}`",
            hint,
        )


def _note_default_baseline(parsed: ParsedJob) -> Iterator[Finding]:
    if (
        parsed.job.baseline is None
        and parsed.job.factors
        and parsed.is_sound(("baseline",), ("factors",))
    ):
        first = ", ".join(
            f"{factor}: {next(iter(levels))}" for factor, levels in parsed.job.factors.items()
        )
        message = "no baseline is given: the first level of each factor is used"
        yield parsed.finding(
            "baseline_chosen",
            ("factors",),
            message,
            f"write `baseline: {{{first}}}`",
            severity=INFO,
            at_key=True,
        )


def _check_exclude(parsed: ParsedJob) -> Iterator[Finding]:
    if not parsed.is_sound(("exclude",)):
        return
    for index, part in enumerate(parsed.job.exclude):
        if not part:
            yield parsed.finding(
                "no_trials",
                ("exclude", index),
                "an empty combination matches every variant",
                "remove it",
            )
        for factor, level in part.items():
            yield from _check_level_exists(parsed, ("exclude", index, factor), factor, level)


def _check_level_exists(
    parsed: ParsedJob, path: KeyPath, factor: str, level: str
) -> Iterator[Finding]:
    levels = parsed.factor_levels()
    if factor not in levels:
        if parsed.is_sound(("factors", factor)):
            yield parsed.finding(
                "unknown_factor",
                path,
                f"there is no factor `{factor}`",
                _suggest_name(factor, levels),
                at_key=True,
            )
    elif level not in levels[factor] and ("factors", factor, level) not in parsed.broken:
        yield parsed.finding(
            "unknown_level",
            path,
            f"factor `{factor}` has no level `{level}`",
            _suggest_name(level, levels[factor]),
        )


def _suggest_name(word: str, known: Mapping[str, object]) -> str:
    found = get_close_matches(word, list(known), n=1, cutoff=0.6) if len(word) <= 64 else []
    names = ", ".join(known)
    return (
        f"did you mean `{found[0]}`?"
        if found
        else f"use one of these names: {names}"
        if known
        else "`factors` is empty: define the factor there first"
    )


def _check_runs_order(parsed: ParsedJob) -> Iterator[Finding]:
    runs = parsed.job.measure.runs
    path = ("measure", "runs")
    if runs.max is not None and runs.min > runs.max and parsed.is_sound(path):
        at = (*path, "min") if parsed.is_written((*path, "min")) else (*path, "max")
        message = f"`min` asks for at least {runs.min} runs, but `max` allows at most {runs.max}"
        yield parsed.finding(
            "runs_order", at, message, f"raise `max` to {runs.min} or more, or lower `min`"
        )


def _check_launches(parsed: ParsedJob) -> Iterator[Finding]:
    path, job = ("measure", "launches"), parsed.job
    if not parsed.is_sound(path, ("engine", "kind")):
        return
    if job.engine.kind == "external":
        message = (
            "an external server is not launched by the job: without launches, every verdict is "
            "INCONCLUSIVE"
        )
        yield parsed.finding(
            "no_launches",
            path if parsed.is_written(path) else ("engine", "kind"),
            message,
            severity=INFO,
        )
    elif job.measure.launches == 1:
        message = (
            "one launch of each variant gives no interval over launches: every verdict will be "
            "INCONCLUSIVE"
        )
        yield parsed.finding(
            "no_interval",
            path,
            message,
            "write `launches: 3` or more",
            severity=WARNING,
        )


def check_host_sharing(parsed: ParsedJob) -> Iterator[Finding]:
    """Check `hosts.share`. A server over several hosts cannot share them. Without GPUs, nothing
    keeps trials on a host apart.
    """
    job = parsed.job
    if not job.hosts.share or not parsed.is_sound(_SHARE_PATH, ("engine",)):
        return
    if (nodes := job.engine.nodes) > 1:
        message = (
            f"a server over {nodes} hosts cannot share these hosts: every rank waits for the "
            "slowest rank"
        )
        yield parsed.finding("shared_gang", _SHARE_PATH, message, "remove `share`")
    elif job.engine.kind == "external" or job.engine.gpus == 0:
        message = (
            "`share` has no effect on trials without GPUs: nothing would keep them apart on a host"
        )
        yield parsed.finding(
            "share_without_gpus", _SHARE_PATH, message, "leave `share` out", severity=WARNING
        )
    else:
        message = (
            "trials share their hosts: each run is flagged `shared_host`, and other trials on the "
            "host affect its numbers"
        )
        yield parsed.finding(
            "shared_host",
            _SHARE_PATH,
            message,
            "remove `share` if you need undisturbed numbers",
            severity=WARNING,
        )


_RULES: tuple[Callable[[ParsedJob], Iterator[Finding]], ...] = (
    check_kind,
    check_levels,
    check_arguments,
    check_variables,
    check_nccl_variables,
    check_container,
    check_secrets,
    check_host_sharing,
    check_unexpanded_variables,
    _check_baseline,
    _note_default_baseline,
    _check_exclude,
    check_workloads,
    _check_runs_order,
    _check_launches,
)

_VARIANT_RULES: tuple[Callable[[VariantSet], Iterator[Finding]], ...] = (
    check_speculation,
    check_parallel_sizes,
    check_server_limits,
    check_ineffective_settings,
    check_nccl_variants,
)
