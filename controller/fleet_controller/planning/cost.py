"""Owns what a plan costs by the fleet file: hosts by the hour, for as long as trials hold them. A
guess, as the time is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_controller.core.inventory import Inventory
from fleet_controller.core.job import Job
from fleet_controller.planning.estimate import busy_seconds
from fleet_controller.planning.job_plan import Plan


@dataclass(frozen=True, slots=True)
class PlanCost:
    """`amount` in `currency` for the hosts whose cost is told; `untold`: those of the plan whose is
    not.
    """

    amount: float
    currency: str
    by_host: Mapping[str, float] = field(default_factory=dict)
    untold: tuple[str, ...] = ()


def estimate_cost(plan: Plan, job: Job, fleet: Inventory) -> PlanCost | None:
    """What the plan costs; None when the fleet file tells no cost of any of its hosts."""
    seconds = busy_seconds(plan, job)
    lent_s = sum(seconds.values()) / max(
        job.engine.gang.nodes, 1
    )  # a load host is with every trial, one after the other
    seconds = {**seconds, **dict.fromkeys(plan.load.hosts, lent_s)}
    known_costs = {
        name: host.cost_per_hour
        for name in seconds
        if (host := fleet.host(name)) is not None and host.cost_per_hour > 0
    }
    if not known_costs:
        return None
    by_host = {name: seconds[name] / 3600 * known_costs[name] for name in known_costs}
    return PlanCost(
        sum(by_host.values()),
        fleet.currency,
        by_host,
        tuple(sorted(set(seconds) - set(known_costs))),
    )
