"""The lock that lets only one controller write to a store, whatever its state folder is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from fleet_controller.store.database import (
    sqlite_path,
    store_gone_error,
    unusable_error,
    unusable_now,
)
from fleet_controller.store.file_lock import hold_lock
from fleet_protos.errors import Conflict, StoreLost

log = logging.getLogger(__name__)

# "benchflt". The advisory locks of PostgreSQL are numbers, separate for each database.
ADVISORY_KEY = 0x62656E6368666C74
_HOLDS = text(
    "select count(*) from pg_locks where locktype = 'advisory' and granted and objsubid = 1 "
    "and pid = pg_backend_pid() and (classid::bigint << 32) + objid::bigint = :key"
)


class StoreLock(Protocol):
    """A lock of a store that this process holds."""

    def check(self) -> None:
        """Raise StoreLost if another controller can take the lock. Raise StoreUnusable if this is
        not known now.
        """

    def write_note(self, note: str) -> None:
        """Write a note for the next holder of the lock."""


@contextmanager
def hold_writer_lock(address: str) -> Iterator[StoreLock]:
    """Lock the store at `address` in the with block. The lock is released if the process dies. This
    function never waits. Readers need no lock.

    For SQLite the lock is a file next to the database. For PostgreSQL it is an advisory lock of a
    connection that stays open. Other databases are not locked. Raises Conflict if another
    controller has the lock. Raises ConfigError if the store has disappeared since the lock was held
    last.
    """
    path = sqlite_path(address)
    if path is not None:
        with hold_lock(Path(f"{path}.lock")) as lock:
            if lock.note and (not path.exists() or not path.stat().st_size):
                raise store_gone_error(path, lock.note)
            yield lock
        return
    try:
        engine = create_engine(address, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        advisory_lock = _AdvisoryLock(engine)
    except (SQLAlchemyError, ImportError) as error:
        raise unusable_error(address, error) from error
    try:
        yield advisory_lock
    finally:
        advisory_lock.release()


class _AdvisoryLock:
    """An advisory lock of PostgreSQL. A lock that is lost with its connection is taken again."""

    def __init__(self, engine: Engine) -> None:
        """Take the lock. Raises Conflict, SQLAlchemyError."""
        self._engine = engine
        self._connection: Connection | None = self._locked_connection(Conflict)

    def check(self) -> None:
        """Take the lock again if it was lost with its connection."""
        try:
            if self._connection is not None and self._is_held(self._connection):
                return
            log.warning("this controller lost the lock of the store and takes it again")
            self.release()
            self._connection = self._locked_connection(StoreLost)
            log.warning("this controller holds the lock of the store again")
        except DBAPIError as error:
            self.release()
            raise unusable_now(error) from error

    def write_note(self, note: str) -> None:
        """Do nothing, because the database itself says whether it holds a store."""

    def release(self) -> None:
        """Close the connection, which releases the lock."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._connection = None

    def _is_held(self, connection: Connection) -> bool:
        if self._engine.dialect.name != "postgresql":
            return True
        try:
            return bool(connection.scalar(_HOLDS, {"key": ADVISORY_KEY}))
        except DBAPIError as error:
            log.warning("the connection of the store's lock broke: %s", error.orig)
            return False

    def _locked_connection(self, refused: type[Conflict]) -> Connection:
        connection = self._engine.connect()
        if self._engine.dialect.name == "postgresql" and not connection.scalar(
            text("select pg_try_advisory_lock(:key)"), {"key": ADVISORY_KEY}
        ):
            connection.close()
            raise refused(
                f"another controller uses the store {self._engine.url}",
                "stop that controller first, or use another database",
            )
        return connection
