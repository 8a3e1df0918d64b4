"""Owns the wait of a submit for the first contact with the agents, and whom it then may plan on. Connects to none itself."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fleet_controller.hosts.host_connection import HostLine
from fleet_controller.jobs.job_index import Board, wait_for
from fleet_controller.planning.host_selection import Candidate
from fleet_protos.errors import ConfigError, HostUnreachable


def candidates(lines: Sequence[HostLine]) -> tuple[Candidate, ...]:
    """Every host that has a name, as it stands now."""
    hosts = (line for line in lines if line.host and not line.leaving)
    return tuple(Candidate(line.host, line.labels, line.connected, line.known is not None, line.load_only) for line in hosts)


async def first_contact(lines: Sequence[HostLine], named: Sequence[str], board: Board, limit_s: float) -> None:
    """Wait until it is known of each agent whether it answers, at most `limit_s`.

    Raises HostUnreachable when none does, or a named one does not, of those that no fleet file knows; trials may wait for the others.
    """
    deadline_s = time.monotonic() + limit_s
    while not _may_plan(lines, named) and (left_s := deadline_s - time.monotonic()) > 0:
        await wait_for(board.next_change(), left_s)
    if not any(line.known is not None for line in lines):
        _refuse_silence(lines, named)


def _may_plan(lines: Sequence[HostLine], named: Sequence[str]) -> bool:
    connected = {line.host for line in lines if line.connected}
    if all(line.was_tried for line in lines):
        return bool(connected) or not lines or any(line.known is not None for line in lines)
    return bool(connected) and bool(named) and connected.issuperset(named)


def _refuse_silence(lines: Sequence[HostLine], named: Sequence[str]) -> None:
    troubles = "; ".join(f"{line.agent.address}: {line.trouble or 'no answer yet'}" for line in lines if not line.connected)
    connected = {line.host for line in lines if line.connected}
    if not connected:
        raise HostUnreachable(f"no agent is connected ({troubles or 'none was named'})", "start an agent, or name its address")
    missing = [name for name in named if name not in connected]
    if missing and (troubles or len(missing) < len(named)):  # none at all is a finding of the plan, with its line in the file
        kind = HostUnreachable if troubles else ConfigError
        told = f"hosts that the job names are not connected: {', '.join(missing)}"
        raise kind(f"{told} ({troubles})" if troubles else told, f"connected are: {', '.join(sorted(connected))}")
