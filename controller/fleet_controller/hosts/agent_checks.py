"""Checks that an agent fits this controller and the fleet file's entry for its host."""

from __future__ import annotations

import logging

from fleet_controller.core.compatibility import agent_incompatibility, clock_warning
from fleet_controller.core.host_view import label_differences
from fleet_controller.core.inventory import FleetHost
from fleet_controller.hosts.agent_client import AgentClient
from fleet_protos.errors import Conflict
from fleet_protos.v1.agent_values import AgentInfo

log = logging.getLogger(__name__)


class AgentChecks:
    """The checks that run at each connection to one agent. A warning is logged again only if its
    text has changed.
    """

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent
        self.is_compatible = True  # both sides speak versions of the contract that fit
        self._logged_differences: tuple[str, ...] = ()
        self._clock_logged = False

    def check(self, info: AgentInfo, fleet_host: FleetHost | None) -> None:
        """Raise Conflict if the agent's version is too old or too new, or if the agent belongs to
        another host.
        """
        self._check_compatibility(info)
        if fleet_host is not None:
            self._check_name(info, fleet_host)
        differing = label_differences(fleet_host, info.labels)
        if differing and differing != self._logged_differences:
            log.warning(
                "%s: label %s; the value of the fleet file is used",
                fleet_host.name if fleet_host else info.host,
                ", ".join(differing),
            )
        self._logged_differences = differing

    def _check_compatibility(self, info: AgentInfo) -> None:
        message, hint = agent_incompatibility(info.host, info.version, info.protocol)
        self.is_compatible = not message
        if message:
            raise Conflict(f"{message}: {hint}", hint)
        warning = clock_warning(self._agent.clock.ahead_ns / 1e9)
        if warning and not self._clock_logged:
            log.warning("%s: %s", info.host, warning)
        self._clock_logged = bool(warning)

    def _check_name(self, info: AgentInfo, fleet_host: FleetHost) -> None:
        if info.host == fleet_host.name:
            return
        message = (
            f"the agent at {self._agent.address} calls itself {info.host or 'nothing'}, "
            f"but the fleet file has host {fleet_host.name} there"
        )
        raise Conflict(
            message,
            f"run `fleetctl deploy {fleet_host.name}` to make it that host, "
            "or correct its address in the fleet file",
        )
