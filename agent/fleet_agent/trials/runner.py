"""Runs one trial: passes its events to the state machine, journals them, and carries out the
effects that the state machine returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_agent.core import effects as fx
from fleet_agent.core.event_limits import limit_event_size
from fleet_agent.core.trial_machine import AgentTrial, accepts, step
from fleet_agent.storage.journal import JournalFailed
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind, FleetError, first_error
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

log = logging.getLogger(__name__)

_JOURNAL_RETRY_S = 0.5

# Appends to the journal and notifies the watchers; returns the event as recorded.
RecordEvent = Callable[[ev.Body, AgentTrial, int], Awaitable[ev.Event]]


@dataclass(slots=True)
class _Inbox:
    """Holds the events that were not processed yet, as (body, sequence number of the event that
    caused it).
    """

    queue: asyncio.Queue[tuple[ev.Body, int]] = field(default_factory=asyncio.Queue)

    def put(self, body: ev.Body, cause: int = 0) -> None:
        self.queue.put_nowait((body, cause))


class TrialRunner:
    """Runs one trial from TrialAccepted to TrialOver. Nothing else changes the trial's state."""

    def __init__(
        self,
        trial: AgentTrial,
        handlers: EffectHandlers,
        record: RecordEvent,
    ) -> None:
        self.trial = trial
        self._handlers = handlers
        self._record = record
        self._inbox = _Inbox()
        self._in_flight: asyncio.Task[None] | None = None

    @property
    def spec(self) -> TrialSpec:
        """The specification of the trial."""
        return self.trial.spec

    def cancel(self, reason: str) -> None:
        """Ask the trial to end. Does nothing if the trial is over."""
        self._inbox.put(ev.CancelRequested(reason))

    async def interrupt(self, end: ev.AgentRestarted) -> None:
        """End the trial because the agent stops. The trial counts as failed, and the controller
        retries it.
        """
        # a process that is being started must be recorded first
        await self._handlers.server.wait_launch_settled()
        self._inbox.put(end)

    async def run(self, first: ev.Body) -> None:
        """Run the trial to its end. Never raises. `first` is TrialAccepted, or AgentRestarted for a
        trial that was found in the journal.
        """
        self._inbox.put(first)
        try:
            async with asyncio.TaskGroup() as tasks:
                while self.trial.phase != Phase.OVER:
                    body, cause = await self._inbox.queue.get()
                    await self._advance(body, cause, tasks)
        except* Exception as broken:
            # a top loop: whatever broke, the server must end and the trial must report it
            log.exception(
                "trial %s attempt %s failed with an unexpected exception",
                self.spec.trial_id,
                self.spec.attempt,
                exc_info=broken,
            )
            await self._close_after_bug(first_error(broken))

    async def _advance(self, body: ev.Body, cause: int, tasks: asyncio.TaskGroup) -> None:
        # mask and limit the event before it reaches journal or watchers
        body = limit_event_size(self._handlers.server.secrets.mask(body))
        if not accepts(self.trial, body):
            log.info("trial %s: ignored the late event %s", self.spec.trial_id, type(body).__name__)
            return
        self.trial, orders = step(self.trial, body, time.monotonic())
        event = await self._record(body, self.trial, cause)
        if isinstance(body, ev.ServerLaunched):
            self._handlers.server.watch(tasks, lambda body: self._inbox.put(body, event.sequence))
        if orders:
            await self._cancel_effect_in_flight()
        for order in orders:
            if not isinstance(order, fx.AbortLoad):
                self._in_flight = tasks.create_task(self._carry_out(order, event.sequence))

    async def _cancel_effect_in_flight(self) -> None:
        """Cancel the effect in flight, because its event no longer counts. A launch is never
        interrupted, because its process must be recorded.
        """
        task, self._in_flight = self._in_flight, None
        if task is None or task is asyncio.current_task() or task.done():
            return
        await self._handlers.server.wait_launch_settled()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _carry_out(self, order: fx.Effect, cause: int) -> None:
        self._inbox.put(await self._handle_effect(order, cause), cause)

    def _handle_effect(self, order: fx.Effect, cause: int) -> Awaitable[ev.Body]:
        handlers = self._handlers
        table: dict[type, Callable[[Any], Awaitable[ev.Body]]] = {
            fx.LaunchServer: lambda launch: handlers.server.launch(
                lambda body: self._inbox.put(body, cause), launch.witness
            ),
            fx.AwaitReady: lambda await_ready: handlers.server.await_ready(
                await_ready.deadline_s, lambda body: self._inbox.put(body, cause)
            ),
            fx.ProveConfiguration: lambda _: handlers.prove(),
            fx.HoldServer: lambda hold: handlers.hold(hold.deadline_s),
            fx.WarmUp: lambda warm_up: handlers.warm_up(warm_up.workload),
            fx.MeasureRun: lambda run: handlers.measure(run.workload, run.index, run.search_runs),
            fx.CollectEvidence: lambda _: handlers.collect(),
            fx.StopServer: lambda _: handlers.server.stop(),
            fx.CloseTrial: handlers.close,
        }
        return table[type(order)](order)

    async def _close_after_bug(self, reason: BaseException) -> None:
        """Stop the server and close the trial, with a bug as the reason. This is the last resort
        after an effect raised an exception that nobody expected.
        """
        with contextlib.suppress(FleetError, OSError):
            await self._handlers.server.stop()
        self._handlers.server.release_port()
        if self.trial.phase != Phase.OVER:
            ending = _close_order(reason)
            self.trial = replace(self.trial, phase=Phase.OVER, ending=ending)
            await self._journal_trial_over(
                ev.TrialOver(ending.outcome, ending.kind, ending.failure_class, ending.message)
            )

    async def _journal_trial_over(self, over: ev.TrialOver) -> None:
        """Journal the end of the trial as soon as the journal accepts it. Until then, the
        controller does not know that the trial has ended, and no other trial may use its GPUs.

        If the agent stops before that, its next process finds the trial unfinished and ends it.
        """
        last_message = ""
        while not _is_cancelling():
            try:
                await self._record(over, self.trial, 0)
                return
            except FleetError as error:
                if error.message != last_message:
                    log.error(
                        "trial %s: the end of the trial cannot be journalled: %s",
                        self.spec.trial_id,
                        error.message,
                    )
                last_message = error.message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_JOURNAL_RETRY_S):
                    body, _ = await self._inbox.queue.get()
                    if isinstance(body, ev.AgentRestarted):
                        return


def _is_cancelling() -> bool:
    """Return whether the agent is stopping. The task's cancel count is read, because a task group
    that failed before may have swallowed the cancellation (Python 3.11 and 3.12).
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _close_order(reason: BaseException) -> fx.CloseTrial:
    if isinstance(reason, JournalFailed):
        return fx.CloseTrial(
            Outcome.FAILED, ErrorKind.CONFLICT, "journal_failed", f"{reason.message}: {reason.hint}"
        )
    return fx.CloseTrial(Outcome.FAILED, ErrorKind.BUG, "bug", f"{type(reason).__name__}: {reason}")
