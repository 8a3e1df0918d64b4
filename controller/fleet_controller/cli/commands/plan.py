"""Implements `fleetctl plan`: shows what a job would do, and starts nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fleet_controller.cli.fleet_file_option import read_fleet
from fleet_controller.cli.job_loading import load_and_prune
from fleet_controller.cli.state_folder import local_host_name
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines
from fleet_controller.core.gang import gangs_of
from fleet_controller.core.inventory import Inventory
from fleet_controller.core.job import Job
from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_controller.planning.cost import PlanCost, estimate_cost
from fleet_controller.planning.equivalence import EquivalentVariant, equivalent_variants
from fleet_controller.planning.estimate import estimate_seconds, gpu_hours
from fleet_controller.planning.host_selection import (
    HostCandidate,
    choose_hosts,
    host_choice_findings,
)
from fleet_controller.planning.host_variables import host_variable_findings
from fleet_controller.planning.job_plan import Plan, make_plan
from fleet_controller.planning.load_host_assignment import (
    load_host_findings,
    load_hosts_of,
    load_plan,
)
from fleet_controller.planning.variants import Variant
from fleet_controller.report.comparison_output import duration_text
from fleet_controller.report.table import Table
from fleet_controller.report.terminal_layout import table_text
from fleet_controller.yaml.findings import in_order
from fleet_protos.errors import ExitCode
from fleet_protos.search_rules import max_runs
from fleet_protos.trial_types import Workload


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print variants, the order of launches and the estimated time and cost.

    Return USAGE_ERROR when the plan is refused.
    """
    loaded, left_out = load_and_prune(arguments, console)
    fleet = _find_fleet(arguments, console)
    plan = plan_for_fleet(loaded.job, fleet) if fleet else _plan_without_fleet(loaded.job)
    seconds, hours = estimate_seconds(plan, loaded.job), gpu_hours(plan, loaded.job)
    cost = estimate_cost(plan, loaded.job, fleet) if fleet else None
    if arguments.json:
        variants_json = {
            "prunable": [twin.to_json() for twin in equivalent_variants(loaded.job, plan.variants)],
            "pruned": [twin.to_json() for twin in left_out],
        }
        cost_json = {
            "cost": cost.amount if cost else None,
            "currency": cost.currency if cost else None,
        }
        console.print_json(
            {
                "version": 1,
                **plan.to_json(),
                **variants_json,
                "estimate": {"minutes": seconds / 60, "gpu_hours": hours, **cost_json},
            }
        )
    else:
        _print_plan(plan, loaded.job, console)
        console.print_lines(_prunable_lines(equivalent_variants(loaded.job, plan.variants)))
        paid_text, duration = f", {cost_text(cost)}" if cost else "", duration_text(seconds / 60)
        console.print_lines(
            [
                f"estimated: {duration}, {hours:.2g} GPU hours{paid_text}"
                " (a guess, within a factor of two or three)"
            ]
        )
    findings = in_order((*loaded.findings, *plan.findings))
    console.print_stderr(*finding_lines(findings, console))
    return ExitCode.USAGE_ERROR if plan.is_refused else ExitCode.DONE


def _find_fleet(arguments: argparse.Namespace, console: Console) -> Inventory | None:
    """Load the fleet file if there is one, so that the plan is for its hosts."""
    path = None if arguments.local else find_fleet_file(arguments.fleet)
    if path is None:
        return None
    console.print_stderr(f"hosts of {path}")
    return read_fleet(path)


def _plan_without_fleet(job: Job) -> Plan:
    """Plan a job without a fleet file. Placeholders stand for hosts that the job does not name."""
    return make_plan(
        job,
        job.hosts.names or _placeholder_hosts(job),
        load_plan(job, job.load.hosts.names if job.load else ()),
    )


def plan_for_fleet(job: Job, fleet: Inventory) -> Plan:
    """Plan a job for the hosts of a fleet file.

    When the job names hosts or labels that do not exist, the plan has no trials, and findings about
    those names replace its general finding `no_hosts`.
    """
    known = [
        HostCandidate(host.name, host.labels, in_file=True, load_only=host.load_only)
        for host in fleet.hosts
    ]
    hosts = choose_hosts(job, known)
    chosen = [host for host in fleet.hosts if host.name in hosts]
    plan = make_plan(job, hosts, load_plan(job, load_hosts_of(job, known, hosts)))
    found = (*host_choice_findings(job, known), *load_host_findings(job, known, hosts))
    own = plan.findings
    if found:
        own = (*found, *(finding for finding in own if finding.code != "no_hosts"))
        plan = replace(plan, trials=())
    return replace(plan, findings=(*own, *host_variable_findings(job, plan.variants, chosen)))


def cost_text(cost: PlanCost) -> str:
    """Format a cost as `about 98 USD`, and name the hosts whose price is unknown."""
    unpriced = (
        cost.unknown_hosts[0]
        if len(cost.unknown_hosts) == 1
        else f"{len(cost.unknown_hosts)} hosts"
    )
    left_out = f" without {unpriced}, whose cost is not known" if cost.unknown_hosts else ""
    return f"about {cost.amount:.3g} {cost.currency}{left_out}"


def _placeholder_hosts(job: Job) -> tuple[str, ...]:
    """Return as many host names as one server of the job needs: this host, then `host-2`, `host-3`
    and so on.
    """
    return (
        local_host_name(),
        *(f"host-{number}" for number in range(2, job.engine.gang.nodes + 1)),
    )


def _print_plan(plan: Plan, job: Job, console: Console) -> None:
    simulated = (
        f"simulated ×{job.engine.simulation.time_scale:g}"
        if job.engine.kind.name == "SIMULATED"
        else job.engine.kind.name.lower()
    )
    gangs = gangs_of(job, plan.hosts)
    places = (
        f"{len(gangs)} × {job.engine.gang.nodes} hosts"
        if job.engine.gang.nodes > 1
        else f"{len(plan.hosts)} hosts"
    )
    variants, trials = len(plan.variants), len(plan.trials)
    workloads = ", ".join(map(_workload_text, job.workloads))
    console.print_lines(
        [
            f"job {plan.job} · {simulated} · {variants} variants × {plan.blocks} launches"
            f" × {places} = {trials} trials · seed {plan.seed}",
            f"workloads: {workloads}{_load_source_text(plan, job)}",
            "",
        ]
    )
    console.print_text(table_text(_variants_table(plan), console.width, console.colour))
    console.print_lines([""])
    orders: dict[tuple[str, int], list[str]] = {}
    for trial in plan.trials:
        orders.setdefault(("+".join((trial.host, *trial.members)), trial.block), []).append(
            f"v{trial.variant.index}"
        )
    console.print_lines(
        f"{host}  block {block}: {' '.join(orders[host, block])}" for host, block in orders
    )


def _workload_text(workload: Workload) -> str:
    """Return the workload's name, and for a search also how many runs a launch may take."""
    search = workload.search
    return (
        f"{workload.name} (at most {max_runs(search)} runs a launch)"
        if search.of
        else workload.name
    )


def _load_source_text(plan: Plan, job: Job) -> str:
    """Return where the load comes from, or an empty text if it comes from the server's own host."""
    if job.load is None:
        return ""
    labels = " ".join(f"{name}={value}" for name, value in job.load.hosts.labels.items())
    return f" · load from {', '.join(plan.load.hosts) or labels or 'load-only hosts'}"


def _prunable_lines(found: Sequence[EquivalentVariant]) -> list[str]:
    """Return a line for each variant that `--prune` would leave out."""
    lines = [
        f"v{twin.variant.index} runs the same server as v{twin.same_as.index}: {twin.why}"
        for twin in found
    ]
    return ["", *lines, "--prune leaves these variants out"] if lines else []


def _variants_table(plan: Plan) -> Table:
    """Build a table of variants with the settings that not all variants share."""
    settings = [_variant_settings(variant) for variant in plan.variants]
    shared = set.intersection(*map(set, settings)) if len(settings) > 1 else set[str]()
    rows = tuple(
        (
            f"v{variant.index}",
            variant.name,
            "baseline" if variant.is_baseline else "",
            str(variant.engine.gpus),
            " ".join(own),
        )
        for variant, all_own in zip(plan.variants, settings, strict=True)
        for own in [[setting for setting in all_own if setting not in shared]]
    )
    return Table(("", "variant", "role", "GPUs", "own settings"), rows, frozenset({"GPUs"}))


def _variant_settings(variant: Variant) -> list[str]:
    arguments = [
        f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}"
        for name, value in variant.engine.args.items()
    ]
    variables = [f"{name}={value}" for name, value in variant.engine.env.items()]
    return arguments + variables + [f"{name}=null" for name in variant.engine.env_removed]
