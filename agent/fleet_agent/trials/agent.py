"""Manages the trials of one host: accepts trials, assigns GPUs, restores trials after a restart and
streams their events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fleet_agent.core.admission.attempt_fencing import attempts_to_end
from fleet_agent.core.allocation import GpuPool, claim_gpus, release
from fleet_agent.core.trial_machine import AgentTrial, new_trial, replay
from fleet_agent.host.host_state import HostState
from fleet_agent.host.open_files import HINT as FILES_HINT
from fleet_agent.host.open_files import describe_file_shortage
from fleet_agent.load.cluster_roles import ClusterRoles
from fleet_agent.load.load_process import LoadProcess, end_earlier
from fleet_agent.server.host_check import AgentActivity
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.storage.artifact_retention import ArtifactRetention
from fleet_agent.storage.journal import Journal, JournalFailed
from fleet_agent.trials.controller_fencing import ControllerFencing
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_agent.trials.runner import TrialRunner
from fleet_agent.trials.state_watch import JournalThread, StateWatch
from fleet_agent.trials.trial_metrics import AgentMetrics
from fleet_protos import events as ev
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import ConfigError, Conflict, first_error
from fleet_protos.trial_types import EngineKind, Phase, TrialSpec, is_gang_member

log = logging.getLogger(__name__)

AttemptKey = tuple[str, int]  # trial id, attempt


@dataclass(frozen=True, slots=True)
class Pools:
    """Holds the real GPUs, and the GPUs that simulated servers claim, as separate pools."""

    real: GpuPool
    simulated: GpuPool


class Agent:
    """Manages all trials of this host. Call its methods only on its event loop."""

    def __init__(
        self, folder: Path, journal: Journal, tools: TrialTools, pools: Pools, metrics: AgentMetrics
    ) -> None:
        self._artifact_root = folder / "artifacts"
        self._retention = ArtifactRetention(self._artifact_root, tools.kept_bytes)
        self._load_folder = folder / "load"
        self.load_parts = ClusterRoles(folder)
        self._journal = journal
        self._tools = tools
        self._pools = {EngineKind.SGLANG: pools.real, EngineKind.SIMULATED: pools.simulated}
        self._metrics = metrics
        self._runners: dict[AttemptKey, TrialRunner] = {}
        self._fencing = ControllerFencing(journal, lambda: self.active)
        self._changed = asyncio.Event()
        self._journal_thread = JournalThread()
        self._state = StateWatch(folder, journal, self._retention, self._journal_thread)
        self._tasks: asyncio.TaskGroup | None = None
        self._ending = asyncio.Event()  # end the trials, then stop
        self._is_ending = False
        self.watchers = 0
        self.idle_since_s = time.monotonic()

    @property
    def artifact_root(self) -> Path:
        """The folder that holds the files of all trials."""
        return self._artifact_root

    @property
    def active(self) -> list[str]:
        """The trials that are not over, as TRIAL/ATTEMPT."""
        return [f"{trial_id}/{attempt}" for trial_id, attempt in sorted(self._runners)]

    @property
    def host(self) -> HostState:
        """The state of the agent's host."""
        return self._tools.host

    @property
    def activity(self) -> AgentActivity:
        """What a host check must not disturb: the active trials, the GPUs that trials may use, and
        the GPUs that they hold. Only GPUs that the driver shows are included.
        """
        read = [pool for kind, pool in self._pools.items() if self._tools.host.uses_gpus(kind)]
        gpus = sorted({gpu for pool in read for gpu in pool.gpus})
        held = sorted(
            {gpu for pool in read for allocation in pool.allocations for gpu in allocation.gpus}
        )
        return AgentActivity(tuple(self.active), tuple(gpus), tuple(held), self.takes_no_trials)

    @property
    def unreleased_attempts(self) -> list[str]:
        """The ended attempts, as TRIAL/ATTEMPT, that the controller has not released yet."""
        return self._retention.unreleased(frozenset(self._runners))

    @property
    def free_bytes(self) -> int:
        """The number of free bytes on the disk that holds the agent's state."""
        return self._state.free_bytes

    @property
    def takes_no_trials(self) -> str:
        """The reason why no new trial may begin on this host now. Empty if a trial may begin."""
        return self._state.shortage or describe_file_shortage()

    async def run(self, stopping: asyncio.Event) -> None:
        """Restore the trials of the journal, then run trials until `stopping` is set. Then end the
        active trials, which count as failed, and wait until they have ended.

        Raises JournalFailed if the journal accepts no more records, because only a new process can
        open it again. If the journal's files are gone, the active trials are ended first: the new
        process would not know about them.
        """
        await end_earlier(self._load_folder)
        await self.load_parts.end_leftovers()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._restore()
                self._tasks.create_task(self._tools.host.watch_quarantined(self._ending))
                works = (
                    self._state.free_disk_space(),
                    self._state.raise_when_journal_broken(),
                    self._wait_for_stop(stopping),
                    self._end_when_state_lost(),
                )
                background = [self._tasks.create_task(work) for work in works]
                try:
                    await self._ending.wait()
                finally:
                    self._is_ending = True  # nobody would end a trial that starts from here on
                why = "the agent's state was lost" if self._state.loss else "the agent was stopped"
                end = ev.AgentRestarted(f"{why} while the trial ran", stopped=not self._state.loss)
                for runner in list(self._runners.values()):
                    await runner.interrupt(end)
                for task in background:
                    task.cancel()
        except* JournalFailed as failed:
            raise first_error(failed) from None
        finally:
            await self.load_parts.stop()
            await self._tools.load.stop()
        self._state.raise_if_lost()

    async def _wait_for_stop(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._ending.set()

    async def _end_when_state_lost(self) -> None:
        await self._state.wait_until_lost()
        self._ending.set()
        self._notify_watchers()  # their streams end

    async def accept_epoch(self, epoch: ControllerEpoch) -> None:
        """Obey orders with this epoch, and from now on refuse orders with an older epoch. Raises
        Conflict if the epoch must not be obeyed. Raises JournalFailed if it cannot be recorded.
        """
        if await self._journal_thread.run(lambda: self._fencing.accept_epoch(epoch)):
            self._notify_watchers()  # the replaced controller's streams end

    def release(self, trial_id: str, attempt: int) -> None:
        """Allow that the files of an ended attempt are deleted, because the controller has stored
        all of them.
        """
        if (trial_id, attempt) not in self._runners:
            self._retention.release(trial_id, attempt)

    def knows(self, trial_id: str, attempt: int) -> bool:
        """Return whether this attempt was accepted before. It may be over."""
        return (trial_id, attempt) in self._runners or self._journal.knows(trial_id, attempt)

    def start(self, spec: TrialSpec) -> bool:
        """Accept a trial. Return True if this trial and attempt was accepted before.

        Raises Superseded if a newer attempt is known. Raises Conflict while an older attempt ends,
        the GPUs are taken or the disk is full. Raises ConfigError if this host lacks the engine.
        """
        if self.knows(spec.trial_id, spec.attempt):
            return True
        self._fence_attempt(spec)
        if missing := self.takes_no_trials:
            raise Conflict(
                f"this host takes no new trials: {missing}",
                f"{'free disk space on this host' if self._state.shortage else FILES_HINT};"
                " the trial waits until then",
            )
        if spec.engine.kind not in self._tools.engines:
            engine = spec.engine.kind.name.lower()
            raise ConfigError(
                f"trial {spec.trial_id}: the agent on this host does not know the engine {engine}",
                "update the agent on this host",
            )
        if spec.engine.kind is EngineKind.SIMULATED and not self._pools[spec.engine.kind].gpus:
            raise ConfigError(
                f"trial {spec.trial_id}: this host runs no simulated servers",
                "set simulated_gpus for this host in the fleet file and run `fleetctl deploy`, or"
                " install benchfleet[simulator] next to the agent",
            )
        try:
            self._launch_runner(new_trial(spec), self._claim_gpus(spec), ev.TrialAccepted(spec))
        except Conflict:
            self._release_gpus(spec)
            raise
        return False

    def cancel(self, trial_id: str, attempt: int, reason: str) -> bool:
        """Ask a trial to end. Return False if the trial is not active."""
        runner = self._runners.get((trial_id, attempt))
        if runner is not None:
            runner.cancel(reason or "cancelled")
        return runner is not None

    async def events(self, after_sequence: int, epoch: ControllerEpoch) -> AsyncIterator[ev.Event]:
        """Yield the events after that sequence number, then wait for new events until cancelled.
        Raises Conflict once another controller has taken over. Raises JournalFailed if the
        journal's files are lost.
        """
        self.watchers += 1
        try:
            with self._fencing.count_stream(epoch):
                while True:
                    changed = self._changed
                    self._state.raise_if_lost()
                    for event in await self._journal_thread.run(
                        partial(self._read_events, after_sequence)
                    ):
                        yield event
                        after_sequence = event.sequence
                    if self._fencing.is_replaced(epoch):
                        raise Conflict(
                            "another controller has taken this host over", "stop this controller"
                        )
                    await changed.wait()
        finally:
            self.watchers -= 1
            self.idle_since_s = time.monotonic()

    def _read_events(self, after_sequence: int) -> list[ev.Event]:
        return list(self._journal.events(after_sequence))

    async def acknowledge(self, up_to_sequence: int) -> None:
        """Record up to which sequence number the controller has stored all events."""
        await self._journal_thread.run(lambda: self._journal.acknowledge(up_to_sequence))

    def _fence_attempt(self, spec: TrialSpec) -> None:
        """Check that this attempt is the newest and that no older attempt runs.

        Raises Superseded if a newer attempt is known. Asks older attempts to end, and raises
        Conflict until they have ended.
        """
        active = [attempt for trial_id, attempt in self._runners if trial_id == spec.trial_id]
        older = attempts_to_end(
            spec.trial_id, spec.attempt, active, self._journal.newest_attempt(spec.trial_id)
        )
        for attempt in older:
            self._runners[spec.trial_id, attempt].cancel(f"attempt {spec.attempt} replaces it")
        if older:
            raise Conflict(
                f"trial {spec.trial_id}: attempt {older[0]} is still ending on this host",
                "the controller tries again soon",
            )

    def _claim_gpus(self, spec: TrialSpec) -> tuple[int, ...]:
        pool = self._pools.get(spec.engine.kind)
        if pool is None:
            return ()
        host = self._tools.host
        pool = replace(
            pool, quarantined=host.quarantined if host.uses_gpus(spec.engine.kind) else {}
        )
        self._pools[spec.engine.kind], gpus = claim_gpus(
            pool, f"{spec.trial_id}/{spec.attempt}", spec.engine.gpus
        )
        return gpus

    def _launch_runner(
        self,
        trial: AgentTrial,
        gpus: tuple[int, ...],
        first: ev.Body,
    ) -> EffectHandlers:
        if self._tasks is None or self._is_ending:
            state = "stopping" if self._is_ending else "starting"
            raise Conflict(f"the agent is {state}", "the controller tries again soon")
        spec, key = trial.spec, trial.key
        try:
            folder = self._retention.create_folder(*key)
        except OSError as error:
            raise Conflict(
                f"cannot create the folder of trial {spec.trial_id}: {error.strerror}",
                "check the disk of the agent's state folder",
            ) from error
        tools = self._tools
        if spec.load.hosts and isinstance(first, ev.TrialAccepted):
            tools = replace(tools, load=self.load_parts.start_lead(spec))
        handlers = EffectHandlers(spec, tools, gpus, folder)
        runner = self._runners[key] = TrialRunner(trial, handlers, self._record)
        self._tasks.create_task(self._run_to_end(key, runner, first, tools.load))
        return handlers

    async def _run_to_end(
        self, key: AttemptKey, runner: TrialRunner, first: ev.Body, load: LoadProcess
    ) -> None:
        is_lead = load is not self._tools.load
        try:
            if isinstance(first, ev.TrialAccepted) and not is_gang_member(runner.spec.engine.gang):
                await load.start(
                    self.load_parts.lead_folder if is_lead else self._load_folder
                )  # Ray starts while the server loads
            await runner.run(first)
        finally:
            if is_lead:  # the load cluster belongs to this attempt
                await load.stop()
                self.load_parts.release_lead(key)
            del self._runners[key]
            self._release_gpus(runner.spec)
            self.idle_since_s = time.monotonic()

    def _release_gpus(self, spec: TrialSpec) -> None:
        kind = spec.engine.kind
        if kind in self._pools:
            self._pools[kind] = release(self._pools[kind], f"{spec.trial_id}/{spec.attempt}")

    async def _record(self, body: ev.Body, trial: AgentTrial, cause: int) -> ev.Event:
        spec, now = trial.spec, time.time_ns()
        try:
            event = await self._journal_thread.run(
                lambda: self._journal.append(
                    body,
                    spec.trial_id,
                    spec.attempt,
                    cause=cause,
                    phase=trial.phase,
                    time_unix_ns=now,
                )
            )
        except JournalFailed:
            self._state.report_journal_failure()
            raise
        self._metrics.record(event, spec)
        self._notify_watchers()
        return event

    def _notify_watchers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _restore(self) -> None:
        """End the trials that an earlier process of this agent has not ended. Their servers are
        found by the Linux sessions in the journal.
        """
        histories: dict[AttemptKey, list[ev.Event]] = {}
        for event in self._journal.events(0):
            histories.setdefault((event.trial_id, event.attempt), []).append(event)
        stopped = self._state.take_stop_reason()
        message = "the agent was restarted while the trial ran"
        message = f"{message}, because {stopped}" if stopped else message
        for history in histories.values():
            if history[-1].phase != Phase.OVER:
                self._end_unfinished(history, message)

    def _end_unfinished(self, history: list[ev.Event], message: str) -> None:
        trial = replay(history)
        spec = trial.spec
        log.warning(
            "trial %s attempt %s had not ended when the agent stopped: ending it now",
            spec.trial_id,
            spec.attempt,
        )
        handlers = self._launch_runner(trial, self._claim_gpus(spec), ev.AgentRestarted(message))
        launched = _recorded_launch(history)
        if launched is not None:
            handlers.server.adopt(launched)


def _recorded_launch(history: list[ev.Event]) -> ev.ServerLaunched | None:
    """Return the newest launch of a trial. Return None if that launch was ordered but its process
    was not recorded. Such a process is found by its launch token.
    """
    newest = next(
        (
            event.body
            for event in reversed(history)
            if isinstance(event.body, ev.ServerLaunched | ev.ServerLaunching)
        ),
        None,
    )
    return newest if isinstance(newest, ev.ServerLaunched) else None
