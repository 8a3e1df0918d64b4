"""Owns the way from a job to its trials: variants, blocks and their order. Pure: the same job and
hosts give the same plan.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_controller.core.gang import hold_limit_s, member_specs
from fleet_controller.core.job import Job, Level
from fleet_controller.planning.witness_policy import needs_witness
from fleet_controller.yaml.findings import ERROR, INFO, WARNING, Finding, has_errors
from fleet_knowledge.sglang.parallelism import count_needed_gpus
from fleet_protos.trial_types import EngineKind, EngineSpec, LoadPlan, TrialSpec

MOST_TRIALS = 10_000
MOST_FILE_BYTES = 256 << 20  # of all trials of a job together, in the store
DEFAULT_VARIANT = "default"
_OWN_LOAD = LoadPlan()


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of levels and the engine it makes. `index` counts from 1 in the order of the
    file.
    """

    index: int
    name: str
    levels: Mapping[str, str]
    engine: EngineSpec
    is_baseline: bool


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One launch to do: the `order`-th of the plan on its host, both counted from 1. `members`: the
    other hosts of its server.
    """

    host: str
    block: int
    order: int
    variant: Variant
    members: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As in the plan's JSON."""
        own = {
            "host": self.host,
            "block": self.block,
            "order": self.order,
            "variant": self.variant.name,
        }
        return {**own, "members": list(self.members)} if self.members else own


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job will do. `trials` are in the order in which each host does them, host by host;
    empty when `findings` has an error.
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
        """True when the plan must not be carried out."""
        return has_errors(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The plan as `fleetctl plan --json` writes it (docs/user/job-file.md)."""
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
        "env": dict(variant.engine.env),
    }


def make_plan(job: Job, hosts: Sequence[str], load: LoadPlan = _OWN_LOAD) -> Plan:
    """Every variant once in each block, in an order drawn from the seed; the plan's findings say
    why it would be refused.

    The order of a block is that of the SHA-256 of seed, host, block and variant, so it can be
    redrawn in any language and does not change when another variant is added. No host is in it
    where any may take the block; the plan then shows one in turn.
    """
    hosts = tuple(dict.fromkeys(hosts))
    variants = make_variants(job)
    findings = [*variant_findings(job, variants), *_size_findings(job, variants, hosts)]
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


def blocks_of(job: Job) -> int:
    """Rounds of launches; an external server is not launched, so it gets one."""
    return 1 if job.engine.kind == EngineKind.EXTERNAL else job.launches


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


def gangs_of(job: Job, hosts: Sequence[str]) -> list[tuple[str, ...]]:
    """The hosts in their order, as many together as one server takes: one each, or `engine.nodes`.
    What is left over is in none.
    """
    nodes = max(job.engine.gang.nodes, 1)
    return [
        tuple(hosts[first : first + nodes]) for first in range(0, len(hosts) - nodes + 1, nodes)
    ]


def _block_order(seed: int, host: str, block: int, variants: Sequence[Variant]) -> list[Variant]:
    return sorted(
        variants,
        key=lambda variant: hashlib.sha256(
            f"{seed}/{host}/{block}/{variant.name}".encode()
        ).digest(),
    )


def make_variants(job: Job) -> tuple[Variant, ...]:
    """Every combination of levels that is not excluded, the last factor turning fastest; none when
    there would be too many.
    """
    if combinations(job) > MOST_TRIALS:
        return ()
    kept = [
        levels
        for levels in _level_combinations(job)
        if not any(part.items() <= levels.items() for part in job.exclude)
    ]
    return tuple(_variant(job, index, levels) for index, levels in enumerate(kept, start=1))


def combinations(job: Job) -> int:
    """How many variants the factors would make before any is excluded."""
    return math.prod(len(levels) for levels in job.factors.values())


def _level_combinations(job: Job) -> Iterator[dict[str, str]]:
    for chosen in itertools.product(*job.factors.values()):
        yield dict(zip(job.factors, chosen, strict=True))


def _variant(job: Job, index: int, levels: Mapping[str, str]) -> Variant:
    return Variant(
        index=index,
        name=",".join(f"{factor}={level}" for factor, level in levels.items()) or DEFAULT_VARIANT,
        levels=levels,
        engine=_resolved_engine(
            job, [job.factors[factor][level] for factor, level in levels.items()]
        ),
        is_baseline=levels == job.baseline,
    )


def _resolved_engine(job: Job, levels: Sequence[Level]) -> EngineSpec:
    """The engine with its levels laid over it, in the order of the file; a later one wins."""
    args, env = dict(job.engine.args), dict[str, str | None](job.engine.env)
    simulation = job.engine.simulation
    for level in levels:
        args.update(level.args)
        env.update(level.env)
        simulation = replace(simulation, **level.simulation)
    args = {name: value for name, value in args.items() if value is not None}
    kept_env = {name: value for name, value in env.items() if value is not None}
    needed = _gpus_of_a_host(job, args)
    gpus = needed if job.gpus is None and job.engine.kind != EngineKind.EXTERNAL else job.gpus or 0
    return replace(job.engine, args=args, env=kept_env, simulation=simulation, gpus=gpus)


def _gpus_of_a_host(job: Job, args: Mapping[str, Any]) -> int:
    return -(-count_needed_gpus(args) // max(job.engine.gang.nodes, 1))


def variant_findings(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """What is wrong with the variants themselves, on whatever host."""
    if combinations(job) > MOST_TRIALS:
        message = f"the factors make {combinations(job)} variants, more than {MOST_TRIALS}"
        yield job.finding(
            "too_many_variants",
            ERROR,
            "factors",
            message,
            "take factors or levels away, or split the job",
        )
        return
    if not variants:
        yield job.finding(
            "no_trials",
            ERROR,
            "exclude",
            "every variant is excluded: nothing would run",
            "keep at least two variants",
        )
        return
    if not any(variant.is_baseline for variant in variants):
        message = "the baseline is excluded: nothing could be compared with it"
        yield job.finding(
            "baseline_excluded",
            ERROR,
            "exclude",
            message,
            "exclude another, or choose another baseline",
        )
    elif len(variants) == 1 and job.factors:
        yield job.finding(
            "one_variant",
            INFO,
            "factors",
            "there is one variant: its speed is measured, nothing is compared",
            "add a level",
        )
    yield from _equal_variants(job, variants)
    yield from _gpu_findings(job, variants)


def _equal_variants(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    first: dict[str, Variant] = {}
    for variant in variants:
        engine = variant.engine
        same = first.setdefault(
            json.dumps([engine.args, engine.env, repr(engine.simulation)], sort_keys=True), variant
        )
        if same is not variant:
            message = f"`{same.name}` and `{variant.name}` launch the same server: they differ in no argument and no variable"
            yield job.finding(
                "equal_variants",
                WARNING,
                "factors",
                message,
                "exclude one, unless you want to see two equal arms (A/A)",
            )


def _gpu_findings(job: Job, variants: Sequence[Variant]) -> Iterator[Finding]:
    """Of the simulated engine alone: what a real one takes is among the rules about SGLang."""
    if job.gpus is None or job.engine.kind != EngineKind.SIMULATED:
        return
    for variant in variants:
        needed = _gpus_of_a_host(job, variant.engine.args)
        if needed != job.gpus:
            message = f"engine.gpus is {job.gpus}, but the arguments of `{variant.name}` take {needed} (tp_size × pp_size × dp_size)"
            yield job.finding(
                "gpus_mismatch",
                WARNING,
                "engine.gpus",
                message,
                f"write gpus: {needed}, or leave it out",
            )
            return


def _size_findings(
    job: Job, variants: Sequence[Variant], hosts: Sequence[str]
) -> Iterator[Finding]:
    if not hosts:
        yield job.finding(
            "no_hosts",
            ERROR,
            "hosts",
            "no host matches: nothing would run",
            "`fleetctl hosts ls` shows names and labels",
        )
    gangs = gangs_of(job, hosts)
    if hosts and job.engine.gang.nodes > 1:
        yield from _gang_findings(job, hosts, gangs)
    count = len(variants) * blocks_of(job) * (len(gangs) if job.hosts.every_host else 1)
    if count > MOST_TRIALS:
        message = f"the plan has {count} trials, more than {MOST_TRIALS}"
        hint = "ask for fewer launches, levels or hosts, or for `placement: any_host`"
        yield job.finding("too_many_trials", ERROR, "measure.launches", message, hint)
    if count * (size := sum(len(file.content) for file in job.files)) > MOST_FILE_BYTES:
        message = f"the files of this job, {size >> 10} KiB packed, would be kept with each of {count} trials"
        yield job.finding(
            "files_too_large",
            ERROR,
            "workloads",
            message,
            "take shorter files, or ask for fewer trials",
        )


def _gang_findings(
    job: Job, hosts: Sequence[str], gangs: Sequence[tuple[str, ...]]
) -> Iterator[Finding]:
    nodes = job.engine.gang.nodes
    if not gangs:
        message = f"one server takes {nodes} hosts, and there {'is' if len(hosts) == 1 else 'are'} {len(hosts)}: {', '.join(hosts)}"
        yield job.finding(
            "too_few_hosts", ERROR, "engine.nodes", message, "choose more hosts, or lower nodes"
        )
    elif left := hosts[len(gangs) * nodes :]:
        message = f"{', '.join(left)} is left over: each server takes {nodes} hosts"
        yield job.finding(
            "hosts_left_over",
            WARNING,
            "engine.nodes",
            message,
            f"choose a multiple of {nodes} hosts",
        )


def trial_id(job_id: str, plan: Plan, planned: PlannedTrial, is_movable: bool = False) -> str:
    """`JOB-b2-v3`, with the host where each block is done on several; safe as the name of a folder.

    A block that may go to any host is done once, so block and variant name the trial wherever it
    goes.
    """
    base = f"{job_id}-b{planned.block}-v{planned.variant.index}"
    return base if len(plan.hosts) < 2 or is_movable else f"{base}-{_safe(planned.host)}"


def _safe(host: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9.-]", "-", host)
    return safe if safe == host else f"{safe}-{hashlib.sha256(host.encode()).hexdigest()[:6]}"


def has_witness(job: Job, plan: Plan, planned: PlannedTrial) -> bool:
    """True for the first trial of each variant on each host, where the job's mode of proof asks for
    it. A gang has none.

    Of a block that may go to any host: as if each went where the plan has it.
    """
    if planned.members:
        return False
    first = 1 if job.hosts.every_host else plan.hosts.index(planned.host) + 1
    return planned.block == first and needs_witness(job, planned.variant.engine)


def trial_spec(job: Job, plan: Plan, planned: PlannedTrial, attempt: int, job_id: str) -> TrialSpec:
    """What an agent needs to carry out `planned`; `attempt` counts from 1. Of a gang it is the
    lead's; `member_specs` gives the others.

    Without a host where any may take the block: `placed_on` gives it one when it begins.
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
    """The first attempt as each of its hosts carries it out, the one that serves first."""
    lead = trial_spec(job, plan, planned, 1, job_id)
    return (
        lead,
        *member_specs(lead, planned.members if lead.host else [""] * len(planned.members)),
    )


def place_on_host(spec: TrialSpec, host: str, hosts_used: Container[str]) -> TrialSpec:
    """A trial of a block that goes to `host`; its witness only where no other block of the job has
    been.
    """
    return replace(spec, host=host, witness=spec.witness and host not in hosts_used)
