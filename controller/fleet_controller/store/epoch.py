"""Keeps the row that names the controller start that may write to the store. Writes of an earlier
start are refused.

The writer lock keeps two controllers apart as long as their database connections live. If a
controller is suspended or cut off from the database while another controller takes over, the first
controller loses that lock. This row then stops its writes.
"""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, insert, select, update

from fleet_controller.store import tables as t
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import StoreLost
from fleet_protos.protocol_version import PROTOCOL


def begin_epoch(connection: Connection) -> ControllerEpoch:
    """Return the epoch of a new controller start. From now on, only this start may write."""
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
    """Raise StoreLost if a later controller start has taken over, or if the store was replaced.
    Otherwise, the row stays locked for the rest of the transaction if the database supports this.
    """
    columns = (t.controller.c.controller_id, t.controller.c.epoch)
    row = connection.execute(select(*columns).with_for_update(read=True)).first()
    if row is None or row.controller_id != ours.controller_id:
        found = row.controller_id if row else "no store of a controller"
        raise StoreLost(
            f"the store was replaced: it was {ours.controller_id}, and now it is {found}",
            "put the store back, or restore a backup, then start the controller again; "
            "agents keep the events that are not stored",
        )
    if row.epoch != ours.epoch:
        raise StoreLost(
            "another controller has taken over the store: "
            f"the store is at epoch {row.epoch}, but this controller is at epoch {ours.epoch}",
            "this controller ends, and the other controller continues its jobs",
        )
