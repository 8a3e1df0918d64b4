"""Downloads the files of one agent, one after the other, and retries a download that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.jobs.state_writer import StateWriter
from fleet_protos.errors import FleetError, NotFound
from fleet_protos.trial_types import Artifact

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LAST_PAUSE_S = 2.0, 60.0


class ArtifactDownloads:
    """The files to download from one agent, by name. `run` must be running."""

    def __init__(self, agent: AgentClient, writer: StateWriter, folder: Path) -> None:
        self._agent = agent
        self._writer = writer
        self._folder = folder
        self._pending: dict[str, Artifact] = {}
        self._added = asyncio.Event()
        self._trouble = ""
        self._all_done = asyncio.Event()
        self._all_done.set()

    def add(self, artifacts: Iterable[Artifact]) -> None:
        """Add files that the agent reported."""
        self._pending.update((artifact.name, artifact) for artifact in artifacts)
        if self._pending:
            self._all_done.clear()
            self._added.set()

    def reset(self, artifacts: Iterable[Artifact]) -> None:
        """Replace the list of files to download by `artifacts`, the reported files that the store
        lacks.
        """
        self._pending.clear()
        self._all_done.set()
        self.add(artifacts)

    @property
    def trouble(self) -> str:
        """Return why the last download failed. Return an empty text if it succeeded or no file is
        missing.
        """
        return f"files are missing: {self._trouble}" if self._trouble and self._pending else ""

    def has_pending(self, attempt: str) -> bool:
        """Return whether files of this TRIAL/ATTEMPT are still missing."""
        return any(name.startswith(f"{attempt}/") for name in self._pending)

    async def wait_until_done(self) -> None:
        """Return when no file is missing."""
        await self._all_done.wait()

    async def run(self) -> None:
        """Download files until cancelled. A file whose download failed is tried again after the
        other files, with growing pauses.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._added.wait()
            self._added.clear()
            for artifact in list(self._pending.values()):
                await self._download(artifact)
            if self._pending:
                asyncio.get_running_loop().call_later(pause_s, self._added.set)
                pause_s = min(pause_s * 2, _LAST_PAUSE_S)
            else:
                self._all_done.set()
                pause_s = _FIRST_PAUSE_S

    async def _download(self, artifact: Artifact) -> None:
        try:
            await self._agent.fetch(artifact, self._folder / _safe_path(artifact.name))
            await self._writer.mark_artifact_fetched(artifact.name)
        except NotFound as error:  # tried again at the next connection, not every few seconds
            log.warning("%s", error.message)
        except FleetError as error:
            if error.message != self._trouble:
                log.warning("%s: %s", artifact.name, error.message)
            self._trouble = error.message
            return
        self._trouble = ""
        if self._pending.get(artifact.name) == artifact:
            del self._pending[artifact.name]


def _safe_path(name: str) -> PurePosixPath:
    """Return the name as a path relative to the artifact folder. Raises NotFound for a path that
    leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise NotFound(f"file {name!r} is not fetched: the path leads out of the artifact folder")
    return path
