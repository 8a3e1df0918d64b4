"""Holds the waiting trials of one job by host and by block, so that a scheduling decision reads
only a few of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from fleet_controller.core.schedule_inputs import Block
from fleet_controller.core.trial_state import Trial


class WaitingIndex:
    """The trials of a job that may start, each list in plan order.

    - `pinned`: the trials that must run on a host, by host.
    - `blocks`: the trials of blocks that no host has begun, by block number.
    """

    def __init__(self, trials: Iterable[str]) -> None:
        self.pinned: dict[str, list[Trial]] = {}
        self.blocks: dict[int, list[Trial]] = {}
        self._place = {trial_id: place for place, trial_id in enumerate(trials)}
        self._kept: dict[str, Trial] = {}

    def update(self, trial: Trial) -> None:
        """Replace a trial, or remove it if it may not start."""
        before = self._kept.pop(trial.spec.trial_id, None)
        if before is not None:
            self._remove(before)
        if trial.may_start:
            self._kept[trial.spec.trial_id] = trial
            insort(self._list_of(trial), trial, key=self._place_of)

    def clear(self) -> None:
        """Remove all trials, because no trial of the job starts any more."""
        self.pinned.clear()
        self.blocks.clear()
        self._kept.clear()

    @property
    def ordered_blocks(self) -> tuple[Block, ...]:
        """Return the blocks in plan order."""
        return tuple(self.blocks[number] for number in sorted(self.blocks))

    def _place_of(self, trial: Trial) -> int:
        return self._place[trial.spec.trial_id]

    def _list_of(self, trial: Trial) -> list[Trial]:
        if trial.spec.host:
            return self.pinned.setdefault(trial.spec.host, [])
        return self.blocks.setdefault(trial.spec.block, [])

    def _remove(self, trial: Trial) -> None:
        trials = self._list_of(trial)
        del trials[bisect_left(trials, self._place_of(trial), key=self._place_of)]
        if not trials and trial.spec.host:
            del self.pinned[trial.spec.host]
        elif not trials:
            del self.blocks[trial.spec.block]
