"""The row that names the controller start that may write to the store; writes of an earlier start
are refused.

The writer lock keeps two controllers apart as long as their connections live. A controller that was
suspended or cut off from the database while another one took over has lost that lock; this row then
stops it.
"""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, insert, select, update

from fleet_controller.store import tables as t
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.protocol_version import PROTOCOL


def begin_epoch(connection: Connection) -> ControllerEpoch:
    """Return the epoch of a new controller start. From here on only this start may write."""
    row = connection.execute(select(t.controller).with_for_update()).mappings().first()
    if row is None:
        new_epoch = ControllerEpoch(uuid.uuid4().hex, 1, PROTOCOL)
        connection.execute(
            insert(t.controller).values(row=1, controller_id=new_epoch.controller_id, epoch=1)
        )
        return new_epoch
    connection.execute(update(t.controller).values(epoch=row["epoch"] + 1))
    return ControllerEpoch(row["controller_id"], row["epoch"] + 1, PROTOCOL)


def require_epoch(connection: Connection, ours: ControllerEpoch) -> None:
    """Lock the row for the rest of the transaction, if the database can. Raises Conflict if a later
    start has taken over.
    """
    epoch = connection.execute(select(t.controller.c.epoch).with_for_update(read=True)).scalar()
    if epoch != ours.epoch:
        raise Conflict(
            "another controller has taken over the store: "
            f"its epoch is {epoch}, that of this controller is {ours.epoch}",
            "stop this controller",
        )
