"""Plans the trials of a job: its variants in blocks, in a random order that depends only on the
seed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_controller.core.gang import gangs_of, hold_limit_s, member_specs
from fleet_controller.core.job import Job, blocks_of
from fleet_controller.planning.plan_findings import size_findings, variant_findings
from fleet_controller.planning.variants import (
    Variant,
    make_variants,
)
from fleet_controller.planning.witness_policy import needs_witness
from fleet_controller.yaml.findings import Finding, has_errors
from fleet_protos.trial_types import LoadPlan, TrialSpec

_OWN_LOAD = LoadPlan()


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One planned launch. `order` is its place among the launches of the host. Block and order
    count from 1.

    `members` holds the other hosts of a server over several hosts.
    """

    host: str
    block: int
    order: int
    variant: Variant
    members: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the entry for the output of `fleetctl plan --json`."""
        own = {
            "host": self.host,
            "block": self.block,
            "order": self.order,
            "variant": self.variant.name,
        }
        return {**own, "members": list(self.members)} if self.members else own


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a job: what is launched, on which hosts and in which order.

    `trials` lists all planned launches host by host, in the order in which each host runs them. It
    is empty if `findings` has an error.
    """

    job: str
    hosts: tuple[str, ...]
    blocks: int
    seed: int
    variants: tuple[Variant, ...]
    trials: tuple[PlannedTrial, ...]
    workloads: tuple[str, ...]
    load: LoadPlan = field(default_factory=LoadPlan)
    findings: tuple[Finding, ...] = field(default=())

    @property
    def is_refused(self) -> bool:
        """Return whether the plan has an error, so that it must not be carried out."""
        return has_errors(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the plan for the output of `fleetctl plan --json`; see docs/user/job-file.md."""
        return {
            "job": self.job,
            "engine": _engine_name(self.variants),
            "time_scale": self.variants[0].engine.simulation.time_scale if self.variants else 1.0,
            "hosts": list(self.hosts),
            **({"load_hosts": list(self.load.hosts)} if self.load.hosts else {}),
            "blocks": self.blocks,
            "seed": self.seed,
            "variants": [_variant_json(variant) for variant in self.variants],
            "workloads": list(self.workloads),
            "trials": [trial.to_json() for trial in self.trials],
            "findings": [finding.to_json() for finding in self.findings],
        }


def _engine_name(variants: Sequence[Variant]) -> str:
    return variants[0].engine.kind.name.lower() if variants else ""


def _variant_json(variant: Variant) -> dict[str, Any]:
    return {
        "name": variant.name,
        "baseline": variant.is_baseline,
        "levels": dict(variant.levels),
        "gpus": variant.engine.gpus,
        "args": dict(variant.engine.args),
        "env": {**variant.engine.env, **dict.fromkeys(variant.engine.env_removed)},
    }


def make_plan(job: Job, hosts: Sequence[str], load: LoadPlan = _OWN_LOAD) -> Plan:
    """Plan every variant once in each block, in an order that the seed determines. If the plan has
    to be refused, its findings say why.

    The order within a block follows the SHA-256 of seed, host, block and variant. Any language can
    recompute it, and a further variant does not change it. If a block may go to any host, the hash
    leaves the host out, and the plan assigns the hosts in turn.
    """
    hosts = tuple(dict.fromkeys(hosts))
    variants = make_variants(job)
    findings = [*variant_findings(job, variants), *size_findings(job, variants, hosts)]
    sound = not has_errors(findings)
    return Plan(
        job=job.name,
        hosts=hosts,
        blocks=blocks_of(job),
        seed=job.measure.seed,
        variants=variants,
        trials=tuple(_trials(job, variants, hosts)) if sound else (),
        workloads=tuple(workload.name for workload in job.workloads),
        load=load,
        findings=tuple(findings),
    )


def _trials(job: Job, variants: Sequence[Variant], hosts: Sequence[str]) -> Iterator[PlannedTrial]:
    gangs = gangs_of(job, hosts)
    for position, (host, *members) in enumerate(gangs):
        order = itertools.count(1)
        for block in range(1, blocks_of(job) + 1):
            if job.hosts.every_host or (block - 1) % len(gangs) == position:
                for variant in _block_order(
                    job.measure.seed, host if job.hosts.every_host else "", block, variants
                ):
                    yield PlannedTrial(host, block, next(order), variant, tuple(members))


def _block_order(seed: int, host: str, block: int, variants: Sequence[Variant]) -> list[Variant]:
    return sorted(
        variants,
        key=lambda variant: hashlib.sha256(
            f"{seed}/{host}/{block}/{variant.name}".encode()
        ).digest(),
    )


def trial_id(job_id: str, plan: Plan, planned: PlannedTrial, is_movable: bool = False) -> str:
    """Return a trial id such as `JOB-b2-v3`, which is a safe folder name. The host is appended if
    each block runs on several hosts.

    A block that may go to any host runs only once, so block and variant identify the trial.
    """
    base = f"{job_id}-b{planned.block}-v{planned.variant.index}"
    return base if len(plan.hosts) < 2 or is_movable else f"{base}-{_safe(planned.host)}"


def _safe(host: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9.-]", "-", host)
    return safe if safe == host else f"{safe}-{hashlib.sha256(host.encode()).hexdigest()[:6]}"


def has_witness(job: Job, plan: Plan, planned: PlannedTrial) -> bool:
    """Return whether the trial needs a witness: it is the first trial of its variant on its host,
    and the job's proof mode asks for one. A gang never has a witness.

    For a block that may go to any host, the host of the plan is assumed.
    """
    if planned.members:
        return False
    first = 1 if job.hosts.every_host else plan.hosts.index(planned.host) + 1
    return planned.block == first and needs_witness(job, planned.variant.engine)


def trial_spec(job: Job, plan: Plan, planned: PlannedTrial, attempt: int, job_id: str) -> TrialSpec:
    """Return what an agent needs to run `planned`. `attempt` counts from 1. For a gang, the result
    is the spec of the lead; `member_specs` makes the specs of the members.

    If any host may take the block, the host is empty. `place_on_host` sets the host when the block
    begins.
    """
    is_movable = not job.hosts.every_host
    spec = TrialSpec(
        trial_id=trial_id(job_id, plan, planned, is_movable),
        attempt=attempt,
        job_id=job_id,
        job_name=job.name,
        variant=planned.variant.name,
        levels=planned.variant.levels,
        block=planned.block,
        host="" if is_movable else planned.host,
        engine=planned.variant.engine,
        workloads=job.workloads,
        measure=job.measure,
        witness=needs_witness(job, planned.variant.engine) and not planned.members
        if is_movable
        else has_witness(job, plan, planned),
        shared=job.hosts.share and planned.variant.engine.gpus > 0,
        load=plan.load,
        files=job.files,
    )
    if not planned.members:
        return spec
    gang = replace(spec.engine.gang, hold_limit_s=hold_limit_s(spec))
    return replace(spec, engine=replace(spec.engine, gang=gang))


def trial_specs(job: Job, plan: Plan, planned: PlannedTrial, job_id: str) -> tuple[TrialSpec, ...]:
    """Return the specs of a trial's first attempt, one for each of its hosts. The lead's spec is
    first.
    """
    lead = trial_spec(job, plan, planned, 1, job_id)
    return (
        lead,
        *member_specs(lead, planned.members if lead.host else [""] * len(planned.members)),
    )


def place_on_host(spec: TrialSpec, host: str, hosts_used: Container[str]) -> TrialSpec:
    """Return the spec of a trial after its block was assigned to `host`. The trial keeps its
    witness only if no other block of the job has used the host.
    """
    return replace(spec, host=host, witness=spec.witness and host not in hosts_used)
