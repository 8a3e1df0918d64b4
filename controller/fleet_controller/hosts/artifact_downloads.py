"""Owns the files that one agent still owes the controller: fetches them one by one and again, never loses a run over one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.jobs.state_writer import Desk
from fleet_protos.errors import FleetError, NotFound
from fleet_protos.trial_types import Artifact

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 2.0, 60.0


class Files:
    """What is owed by one agent, by name. `fetch` must be running for anything to come."""

    def __init__(self, agent: AgentClient, desk: Desk, folder: Path) -> None:
        self._agent = agent
        self._desk = desk
        self._folder = folder
        self._owed: dict[str, Artifact] = {}
        self._news = asyncio.Event()
        self._trouble = ""
        self._paid = asyncio.Event()
        self._paid.set()

    def owe(self, artifacts: Iterable[Artifact]) -> None:
        """The agent told of these."""
        self._owed.update((artifact.name, artifact) for artifact in artifacts)
        if self._owed:
            self._paid.clear()
            self._news.set()

    def replace(self, artifacts: Iterable[Artifact]) -> None:
        """A line was made: these are all that the store wants of the agent that is there now."""
        self._owed.clear()
        self._paid.set()
        self.owe(artifacts)

    @property
    def trouble(self) -> str:
        """Why files are still to come though they were asked for; empty when nothing stands in the way."""
        return f"files wait: {self._trouble}" if self._trouble and self._owed else ""

    def owes(self, attempt: str) -> bool:
        """Files of this TRIAL/ATTEMPT are still to come."""
        return any(name.startswith(f"{attempt}/") for name in self._owed)

    async def all_fetched(self) -> None:
        """Returns when no file is owed."""
        await self._paid.wait()

    async def fetch(self) -> None:
        """Fetch what is owed, for ever; one that fails is tried again after the others, with growing pauses."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._news.wait()
            self._news.clear()
            for artifact in list(self._owed.values()):
                await self._fetch(artifact)
            if self._owed:
                asyncio.get_running_loop().call_later(pause_s, self._news.set)
                pause_s = min(pause_s * 2, _LAST_PAUSE_S)
            else:
                self._paid.set()
                pause_s = _FIRST_PAUSE_S

    async def _fetch(self, artifact: Artifact) -> None:
        try:
            await self._agent.fetch(artifact, self._folder / _inside(artifact.name))
            await self._desk.artifact_fetched(artifact.name)
        except NotFound as error:  # asked for again at the next connection, not every few seconds
            log.warning("%s", error.message)
        except FleetError as error:
            if error.message != self._trouble:
                log.warning("%s: %s", artifact.name, error.message)
            self._trouble = error.message
            return
        self._trouble = ""
        if self._owed.get(artifact.name) == artifact:
            del self._owed[artifact.name]


def _inside(name: str) -> PurePosixPath:
    """The name as a path below the artifact folder. Raises NotFound for one that leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise NotFound(f"the agent names a file {name!r}, which lies outside of the artifact folder: it is not fetched")
    return path
