"""The lock that lets only one controller write to a store, whatever its state folder is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fleet_controller.store.database import redact_password, sqlite_path, unusable_error
from fleet_controller.store.file_lock import hold_lock
from fleet_protos.errors import Conflict

# "benchflt". The advisory locks of PostgreSQL are numbers, separate for each database.
_KEY = 0x62656E6368666C74


@contextmanager
def hold_writer_lock(address: str) -> Iterator[None]:
    """Lock the store at `address` in the with block. The lock is released if the process dies. This
    function never waits. Readers need no lock.

    For SQLite the lock is a file next to the database. For PostgreSQL it is an advisory lock of a
    connection that stays open. Other databases are not locked. Raises Conflict if another
    controller has the lock.
    """
    path = sqlite_path(address)
    if path is not None:
        with hold_lock(Path(f"{path}.lock")):
            yield
        return
    with _hold_advisory_lock(address):
        yield


@contextmanager
def _hold_advisory_lock(address: str) -> Iterator[None]:
    try:
        engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        connection = engine.connect()
    except (SQLAlchemyError, ImportError) as error:
        raise unusable_error(address, error) from error
    with connection:
        if engine.dialect.name == "postgresql" and not connection.scalar(
            text("select pg_try_advisory_lock(:key)"), {"key": _KEY}
        ):
            raise Conflict(
                f"another controller uses {redact_password(address)}",
                "stop that controller first, or use another database",
            )
        yield
