"""Which controller this agent follows: checks each epoch that a controller presents and records the
newest in the journal.
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
    """The current controller. `active` returns TRIAL/ATTEMPT of the trials that run here."""

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
        """Check an epoch; if it is newer, record it and return True. Writes to disk: call it on the
        journal's thread.

        Raises Conflict if orders from it must not be obeyed, JournalFailed.
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
            "this agent now follows controller %s, start %d",
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
        """Count an event stream to the holder of this epoch within the context. A read-only
        observer does not count.
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
