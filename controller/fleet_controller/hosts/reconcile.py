"""Owns what is left to do at a host for attempts that are over: ends what no longer counts, lets
files go that are here. Starts nothing.

Both go by what the host says of itself now, so that nothing depends on a call that was lost.
"""

from __future__ import annotations

import logging
from functools import partial

from fleet_controller.core.trial_state import Attempt
from fleet_controller.hosts.agent_client import AgentClient, AgentInfo
from fleet_controller.hosts.artifact_downloads import ArtifactDownloads
from fleet_controller.jobs.state_writer import StateWriter

log = logging.getLogger(__name__)


class AttemptReconciler:
    """Of one host. All calls raise HostUnreachable and Conflict."""

    def __init__(
        self, agent: AgentClient, writer: StateWriter, downloads: ArtifactDownloads
    ) -> None:
        self._agent = agent
        self._writer = writer
        self._downloads = downloads
        self._foreign: set[str] = set()  # of another store: they are not ours to let go

    async def cancel_ended_attempts(self, info: AgentInfo) -> None:
        """Cancel there what is over here: it was given up while the host was away."""
        for name in info.active_trials:
            attempt = await self._attempt(name)
            if attempt is None or not attempt.is_over:
                continue
            if await self._agent.cancel(
                *_attempt_key(name), "the controller had given this attempt up"
            ):
                log.info(
                    "%s: %s still ran and is over here (%s): it is ended",
                    info.host,
                    name,
                    attempt.failure_class or "over",
                )

    async def release_files(self, info: AgentInfo, stored: int) -> None:
        """Let go of the files of attempts that are over, once all that was told of them is stored
        up to `stored`, and fetched.
        """
        if stored < info.last_sequence:
            return
        for name in info.kept_attempts:
            if name in self._foreign or self._downloads.has_pending(name):
                continue
            attempt = await self._attempt(name)
            if attempt is None:
                self._foreign.add(name)
            elif attempt.is_over:
                await self._agent.release(*_attempt_key(name))
        self._foreign.intersection_update(info.kept_attempts)

    async def _attempt(self, name: str) -> Attempt | None:
        return await self._writer.run_in_store(
            partial(self._writer.store.attempt, *_attempt_key(name))
        )


def _attempt_key(name: str) -> tuple[str, int]:
    """Trial id and attempt of TRIAL/ATTEMPT."""
    trial_id, _, attempt = name.rpartition("/")
    return trial_id, int(attempt) if attempt.isdecimal() else 0
