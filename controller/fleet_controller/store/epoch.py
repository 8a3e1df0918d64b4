"""Owns the row that says which start of which controller works with the store; refuses the writes
of an earlier one. Keeps no lock.

`claim` keeps two controllers apart as long as their connections live. A controller that slept, or
whose line to the database was cut while another one took over, wakes up without its claim: then
this row stops it.
"""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, insert, select, update

from fleet_controller.store import tables as t
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.protocol_version import PROTOCOL


def begin_epoch(connection: Connection) -> ControllerEpoch:
    """The lease of one more start on this store, from here on the only one that may write."""
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
    """Hold the row for the rest of the transaction, where the database can. Raises Conflict when a
    later start has taken over.
    """
    epoch = connection.execute(select(t.controller.c.epoch).with_for_update(read=True)).scalar()
    if epoch != ours.epoch:
        message = f"another controller has taken over the store: start {epoch} of it came after this one, which is {ours.epoch}"
        raise Conflict(message, "end this one")
