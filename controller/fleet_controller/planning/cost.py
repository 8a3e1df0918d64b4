"""Estimates what a plan costs, from the hourly price of each host and the time for which trials use
the host.
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
    """The cost of all hosts with a known price. `unknown_hosts` holds the hosts of the plan without
    a price.
    """

    amount: float
    currency: str
    by_host: Mapping[str, float] = field(default_factory=dict)
    unknown_hosts: tuple[str, ...] = ()


def estimate_cost(plan: Plan, job: Job, fleet: Inventory) -> PlanCost | None:
    """Return the cost of the plan, or None if the fleet file has no price for any of its hosts."""
    seconds = busy_seconds(plan, job)
    # A load host is used by every trial, one after the other.
    load_s = sum(seconds.values()) / max(job.engine.gang.nodes, 1)
    seconds = {**seconds, **dict.fromkeys(plan.load.hosts, load_s)}
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
