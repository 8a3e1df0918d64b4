"""Brings a host in line with the controller. Attempts that the controller has ended are cancelled
on the host, and files that the controller has stored are released there.

Both steps compare with what the host reports now, so nothing depends on a call that was lost.
"""

from __future__ import annotations

import logging
from functools import partial

from fleet_controller.core.trial_state import Attempt
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.hosts.artifact_downloads import ArtifactDownloads
from fleet_controller.jobs.state_writer import StateWriter
from fleet_protos.v1.agent_values import AgentInfo

log = logging.getLogger(__name__)


class AttemptReconciler:
    """Cancels attempts and releases files on one host. Its calls raise HostUnreachable and
    Conflict.
    """

    def __init__(
        self, agent: AgentClient, writer: StateWriter, downloads: ArtifactDownloads
    ) -> None:
        self._agent = agent
        self._writer = writer
        self._downloads = downloads
        self._foreign: set[str] = set()  # attempts of another store, which we must not release

    async def cancel_ended_attempts(self, info: AgentInfo) -> None:
        """Cancel attempts that still run on the host although the controller has ended them. The
        controller gave them up while the host was away.
        """
        for name in info.active_trials:
            attempt = await self._attempt(name)
            if attempt is None or not attempt.is_over:
                continue
            if await self._agent.cancel(
                *_attempt_key(name), "the controller has given up this attempt"
            ):
                log.info(
                    "%s: cancelled %s, which still ran although the controller has ended it (%s)",
                    info.host,
                    name,
                    attempt.failure_class or "over",
                )

    async def release_files(self, info: AgentInfo, stored: int) -> None:
        """Release the files of each ended attempt if none of its files is missing here.

        `stored` is the number of the host's last stored event. Nothing is released if the host has
        newer events.
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
    """Split TRIAL/ATTEMPT into trial id and attempt."""
    trial_id, _, attempt = name.rpartition("/")
    return trial_id, int(attempt) if attempt.isdecimal() else 0
