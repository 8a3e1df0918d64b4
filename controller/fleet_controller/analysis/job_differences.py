"""Finds differences between two jobs that a ratio of their results would hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from fleet_controller.core.job import Job
from fleet_protos.trial_types import Workload


def job_differences(before: Job, after: Job) -> tuple[str, ...]:
    """Return one line for each difference that may mislead: another model, shared hosts, load from
    other hosts, or other values of a workload with the same name. Settings that are under test may
    differ.
    """
    return (
        *_models(before, after),
        *_sharing(before, after),
        *_load(before, after),
        *_workloads(before, after),
    )


def _models(before: Job, after: Job) -> Iterator[str]:
    if before.engine.model_path != after.engine.model_path:
        yield (
            f"the jobs have different models: {before.engine.model_path} and "
            f"{after.engine.model_path}"
        )


def _sharing(before: Job, after: Job) -> Iterator[str]:
    if before.hosts.share != after.hosts.share:
        which = "second" if after.hosts.share else "first"
        yield (
            f"only the {which} job shared its hosts (hosts.share): other trials on these "
            "hosts may cause the whole difference"
        )


def _load(before: Job, after: Job) -> Iterator[str]:
    if before.load != after.load:
        first, second = (_load_source(job) for job in (before, after))
        yield (
            f"the load came from {first} in the first job and from {second} in the second job: "
            "the network path is part of the difference"
        )


def _load_source(job: Job) -> str:
    if job.load is None:
        return "the server's own host"
    hosts = job.load.hosts
    chosen = (
        ", ".join(hosts.names)
        or " ".join(f"{name}={value}" for name, value in hosts.labels.items())
        or "load-only hosts"
    )
    shards = f"; {job.load.shards} shards" if job.load.shards else ""
    return f"other hosts ({chosen}{shards})"


def _workloads(before: Job, after: Job) -> Iterator[str]:
    known = {workload.name: workload for workload in before.workloads}
    for workload in after.workloads:
        name = workload.name
        changes = ", ".join(_changed_fields(known[name], workload)) if name in known else ""
        if changes:
            yield f"workload {name} does not have the same load in both jobs: {changes}"


def _changed_fields(before: Workload, after: Workload) -> list[str]:
    pairs = (
        (field.name, getattr(before, field.name), getattr(after, field.name))
        for field in fields(Workload)
    )
    return [f"{name} {old} against {new}" for name, old, new in pairs if old != new]
