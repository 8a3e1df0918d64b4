"""Owns which controller this agent follows: judges each lease that is shown, remembers the newest
in the journal. Gives no orders.
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
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict

log = logging.getLogger(__name__)


class ControllerFencing:
    """The controller of now. `active` tells TRIAL/ATTEMPT of what runs here."""

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
        """Check a lease, and remember it when it is newer: True then. Writes to disk: call it where
        the journal is written.

        Raises Conflict when orders under it are not to be obeyed, JournalFailed.
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
        if not presented.names_controller or (presented.controller_id, presented.epoch) == (
            held.controller_id,
            held.epoch,
        ):
            return False
        self._journal.record_epoch(presented)
        log.info(
            "orders come from controller %s from here on, its start %d",
            presented.controller_id[:8],
            presented.epoch,
        )
        return True

    def is_replaced(self, presented: ControllerEpoch) -> bool:
        """Another controller, or a later start of this one, has taken over since `shown` was
        accepted.
        """
        held = self._journal.epoch
        return presented.names_controller and (presented.controller_id, presented.epoch) != (
            held.controller_id,
            held.epoch,
        )

    @contextmanager
    def count_stream(self, presented: ControllerEpoch) -> Iterator[None]:
        """A stream of events goes to the holder of this lease while inside; somebody who only looks
        on does not count.
        """
        if not presented.names_controller:
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
