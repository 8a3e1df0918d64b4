"""Decides which controller this agent obeys: checks each epoch that a controller presents, and
records the newest epoch in the journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fleet_agent.core.admission.controller_takeover import (
    TAKE_OVER_AFTER_S,
    CurrentController,
    check_order,
)
from fleet_agent.storage.journal import Journal
from fleet_protos.controller_epoch import ControllerEpoch, names_controller
from fleet_protos.errors import Conflict

log = logging.getLogger(__name__)


class ControllerFencing:
    """Holds which controller the agent obeys. `active` returns the trials that are not over, as
    TRIAL/ATTEMPT.
    """

    def __init__(
        self,
        journal: Journal,
        active: Callable[[], list[str]],
        take_over_after_s: float = TAKE_OVER_AFTER_S,
    ) -> None:
        self._journal = journal
        self._active = active
        self._take_over_after_s = take_over_after_s
        self._streams = 0
        self._no_stream_since_s = time.monotonic()

    def accept_epoch(self, presented: ControllerEpoch) -> bool:
        """Check an epoch that a controller presents. If it is new, record it and return True. This
        writes to disk: call it on the journal's thread.

        Raises Conflict if orders with this epoch must not be obeyed. Raises JournalFailed if the
        epoch cannot be recorded.
        """
        held = self._journal.epoch
        away_s = time.monotonic() - self._no_stream_since_s
        refused = check_order(
            CurrentController(held, self._streams > 0, self._describe_unstored(), away_s),
            presented,
            self._take_over_after_s,
        )
        if refused is not None:
            raise Conflict(refused.message, refused.hint)
        if not names_controller(presented) or (presented.controller_id, presented.epoch) == (
            held.controller_id,
            held.epoch,
        ):
            return False
        self._journal.record_epoch(presented)
        log.info(
            "this agent now obeys controller %s with epoch %d",
            presented.controller_id[:8],
            presented.epoch,
        )
        return True

    def is_replaced(self, presented: ControllerEpoch) -> bool:
        """Return whether another controller, or a later start of this one, has taken over since
        `presented` was accepted.
        """
        held = self._journal.epoch
        return names_controller(presented) and (presented.controller_id, presented.epoch) != (
            held.controller_id,
            held.epoch,
        )

    @contextmanager
    def count_stream(self, presented: ControllerEpoch) -> Iterator[None]:
        """Count an event stream to a controller for as long as the context is open. A stream to a
        read-only observer, which presents no epoch, does not count.
        """
        if not names_controller(presented):
            yield
            return
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
            self._no_stream_since_s = time.monotonic()

    def _describe_unstored(self) -> str:
        active, events = (
            len(self._active()),
            self._journal.last_sequence - self._journal.acknowledged,
        )
        counts = [
            f"{count} {word}{'' if count == 1 else 's'}"
            for count, word in ((active, "trial"), (events, "event"))
            if count
        ]
        return " and ".join(counts)
