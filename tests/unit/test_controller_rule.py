"""Whose orders an agent obeys: one controller at a time, of its starts the newest, and nobody who
speaks another language.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.core.admission.controller_takeover import CurrentController, check_order
from fleet_agent.storage.journal import Journal
from fleet_agent.trials.controller_fencing import ControllerFencing
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.events import TrialAccepted, TrialOver
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import Phase, TrialSpec

OURS = ControllerEpoch("ours", 5, PROTOCOL)
OTHER = ControllerEpoch("other", 1, PROTOCOL)


def refused(now: CurrentController, shown: ControllerEpoch) -> str:
    told = check_order(now, shown, take_over_after_s=60.0)
    return told.message if told else ""


@pytest.mark.parametrize(
    ("now", "shown", "told"),
    [
        (CurrentController(ControllerEpoch()), OURS, ""),
        (CurrentController(OURS), OURS, ""),
        (CurrentController(OURS), replace(OURS, epoch=6), ""),
        (CurrentController(OURS, is_connected=True), replace(OURS, epoch=6), ""),
        (CurrentController(OURS, unstored="1 trial"), replace(OURS, epoch=6), ""),
        (
            CurrentController(OURS),
            replace(OURS, epoch=4),
            "this controller was replaced: it has epoch 4, and a controller with epoch 5 has been started on the same store",
        ),
        (CurrentController(OURS), OTHER, ""),
        (
            CurrentController(OURS, is_connected=True),
            OTHER,
            "this host belongs to controller ours, which is connected",
        ),
        (
            CurrentController(OURS, unstored="3 events", away_s=59),
            OTHER,
            "this host belongs to controller ours, which has not stored 3 events yet",
        ),
        (CurrentController(OURS, unstored="3 events", away_s=61), OTHER, ""),
        (CurrentController(OURS), ControllerEpoch(), ""),
        (CurrentController(OURS), replace(OURS, protocol=PROTOCOL + 1), ""),
        (
            CurrentController(OURS),
            replace(OURS, protocol=9),
            f"the controller speaks protocol 1.9, this agent 1.{PROTOCOL}",
        ),
    ],
)
def test_orders_are_obeyed_of_one_controller_and_its_newest_start(
    now: CurrentController, shown: ControllerEpoch, told: str
) -> None:
    assert refused(now, shown).partition(": more than")[0] == told


def test_a_replaced_controller_stays_replaced_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    assert ControllerFencing(journal, list).accept_epoch(replace(OURS, epoch=6)) is True
    assert ControllerFencing(journal, list).accept_epoch(replace(OURS, epoch=6)) is False
    journal.close()
    again = Journal.open(tmp_path)
    with pytest.raises(Conflict, match="this controller was replaced"):
        ControllerFencing(again, list).accept_epoch(OURS)
    again.close()


def test_a_second_controller_comes_in_when_the_first_has_hung_up_and_stored_everything(
    tmp_path: Path,
) -> None:
    journal = Journal.open(tmp_path)
    active: list[str] = []
    allegiance = ControllerFencing(journal, lambda: active)
    allegiance.accept_epoch(OURS)
    journal.append(
        TrialAccepted(TrialSpec("t")), "t", 1, cause=0, phase=Phase.LAUNCHING, time_unix_ns=1
    )
    active.append("t/1")
    told = []
    with allegiance.count_stream(OURS):
        told.append(_why(allegiance, OTHER))
    told.append(_why(allegiance, OTHER))
    active.clear()
    journal.append(TrialOver(), "t", 1, cause=0, phase=Phase.OVER, time_unix_ns=1)
    told.append(_why(allegiance, OTHER))
    journal.acknowledge(2)
    told.append(_why(allegiance, OTHER))
    assert [line.rpartition("which ")[2] for line in told] == [
        "is connected", "has not stored 1 trial and 1 event yet", "has not stored 2 events yet", "",
    ]  # fmt: skip
    assert allegiance.is_replaced(OURS)
    assert not allegiance.is_replaced(ControllerEpoch()), (
        "somebody who only looks on is not sent away"
    )
    journal.close()


def _why(allegiance: ControllerFencing, shown: ControllerEpoch) -> str:
    try:
        allegiance.accept_epoch(shown)
    except Conflict as error:
        return error.message
    return ""
