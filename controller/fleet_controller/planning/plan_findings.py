"""Checks the variants and the size of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fleet_controller.core.gang import gangs_of
from fleet_controller.core.job import Job, blocks_of
from fleet_controller.planning.variants import (
    MOST_TRIALS,
    Variant,
    count_combinations,
    gpus_per_host,
)
from fleet_controller.yaml.findings import ERROR, INFO, WARNING, Finding
from fleet_protos.trial_types import EngineKind

MOST_FILE_BYTES = 256 << 20  # in the store, all trials of a job together


def variant_findings(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """Yield a finding for each problem with the variants that does not depend on the hosts."""
    if count_combinations(job) > MOST_TRIALS:
        count = count_combinations(job)
        message = f"the factors make {count} variants, but at most {MOST_TRIALS} are allowed"
        yield job.finding(
            "too_many_variants",
            ERROR,
            "factors",
            message,
            "remove factors or levels, or split the job",
        )
        return
    if not variants:
        yield job.finding(
            "no_trials",
            ERROR,
            "exclude",
            "every variant is excluded, so nothing would run",
            "keep at least two variants",
        )
        return
    if not any(variant.is_baseline for variant in variants):
        message = "the baseline is excluded, so no variant could be compared with it"
        yield job.finding(
            "baseline_excluded",
            ERROR,
            "exclude",
            message,
            "exclude another variant, or choose another baseline",
        )
    elif len(variants) == 1 and job.factors:
        yield job.finding(
            "one_variant",
            INFO,
            "factors",
            "there is only one variant, which is measured but compared with nothing",
            "add a level to make a second variant",
        )
    yield from _equal_variants(job, variants)
    yield from _gpu_findings(job, variants)


def _equal_variants(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    first: dict[str, Variant] = {}
    for variant in variants:
        engine = variant.engine
        same = first.setdefault(
            json.dumps(
                [engine.args, engine.env, engine.env_removed, repr(engine.simulation)],
                sort_keys=True,
            ),
            variant,
        )
        if same is not variant:
            message = (
                f"`{same.name}` and `{variant.name}` launch the same server: "
                "all their arguments and variables are equal"
            )
            yield job.finding(
                "equal_variants",
                WARNING,
                "factors",
                message,
                "exclude one of the two, unless you want an A/A comparison",
            )


def _gpu_findings(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """Check the number of GPUs for the simulated engine only. For SGLang, the rules about SGLang
    check this number.
    """
    if job.gpus is None or job.engine.kind != EngineKind.SIMULATED:
        return
    for variant in variants:
        needed = gpus_per_host(job, variant.engine.args)
        if needed != job.gpus:
            message = (
                f"engine.gpus is {job.gpus}, but the arguments of `{variant.name}` "
                f"need {needed} (tp_size × pp_size × dp_size)"
            )
            yield job.finding(
                "gpus_mismatch",
                WARNING,
                "engine.gpus",
                message,
                f"write `gpus: {needed}`, or remove `gpus`",
            )
            return


def size_findings(job: Job, variants: Sequence[Variant], hosts: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each problem with the hosts or the size of a plan."""
    if not hosts:
        yield job.finding(
            "no_hosts",
            ERROR,
            "hosts",
            "no host matches the job, so nothing would run",
            "`fleetctl hosts ls` shows names and labels",
        )
    gangs = gangs_of(job, hosts)
    if hosts and job.engine.gang.nodes > 1:
        yield from _gang_findings(job, hosts, gangs)
    count = len(variants) * blocks_of(job) * (len(gangs) if job.hosts.every_host else 1)
    if count > MOST_TRIALS:
        message = f"the plan has {count} trials, but at most {MOST_TRIALS} are allowed"
        hint = "use fewer launches, levels or hosts, or `placement: any_host`"
        yield job.finding("too_many_trials", ERROR, "measure.launches", message, hint)
    if count * (size := sum(len(file.content) for file in job.files)) > MOST_FILE_BYTES:
        size_kib, limit_mib = size >> 10, MOST_FILE_BYTES >> 20
        message = (
            f"the files of this job ({size_kib} KiB compressed) are stored with each of its "
            f"{count} trials, which takes more than the limit of {limit_mib} MiB"
        )
        yield job.finding(
            "files_too_large",
            ERROR,
            "workloads",
            message,
            "use shorter files or fewer trials",
        )


def _gang_findings(
    job: Job, hosts: Sequence[str], gangs: Sequence[tuple[str, ...]]
) -> Iterator[Finding]:
    nodes = job.engine.gang.nodes
    if not gangs:
        count, names = len(hosts), ", ".join(hosts)
        match = "host matches" if count == 1 else "hosts match"
        message = f"one server takes {nodes} hosts, but only {count} {match} the job: {names}"
        yield job.finding(
            "too_few_hosts", ERROR, "engine.nodes", message, "choose more hosts, or lower `nodes`"
        )
    elif left := hosts[len(gangs) * nodes :]:
        names = ", ".join(left)
        message = f"each server takes {nodes} hosts, so these hosts are not used: {names}"
        yield job.finding(
            "hosts_left_over",
            WARNING,
            "engine.nodes",
            message,
            f"choose a multiple of {nodes} hosts",
        )
