"""Holds an open store: its transactions, and the checks that the store was not replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from google.protobuf import json_format
from sqlalchemy import Connection, Engine

from fleet_controller.store import epoch
from fleet_controller.store.database import damage_error, translate_errors
from fleet_controller.store.store_guard import SqliteGuard
from fleet_controller.store.writer_lock import StoreLock
from fleet_protos.controller_epoch import ControllerEpoch, names_controller
from fleet_protos.errors import StoreLost


class StoreSession:
    """The connections of one process to a store. Messages call the store `name`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        # Set by `take_over`; without an epoch, writes are not checked.
        self.controller_epoch = ControllerEpoch()
        self._name = name
        self._locks: Sequence[StoreLock] = ()
        self._guard: SqliteGuard | None = None
        self._lost: StoreLost | None = None  # once any transaction has seen it

    def take_over(self, locks: Sequence[StoreLock]) -> ControllerEpoch:
        """Begin a new epoch, so that no earlier controller can write to the store any more. From
        now on, each write checks that the store is still the one that was opened. `locks` holds the
        locks that this controller holds.

        Raises StoreLost.
        """
        with self._translating(), self.engine.begin() as connection:
            self.controller_epoch = epoch.begin_epoch(connection)
        path = self.engine.url.database
        if self.engine.dialect.name == "sqlite" and path:
            self._guard = SqliteGuard(Path(path), self._require_epoch)
        self._locks = locks
        for lock in locks:
            lock.write_note(f"store {self.controller_epoch.controller_id}\n")
        return self.controller_epoch

    def check(self) -> None:
        """Raise StoreLost if the store is damaged, or if the store or a lock of it is no longer the
        one that was opened. Raise StoreUnusable if this is not known now.
        """
        with self._translating():
            if self._lost is not None:
                raise self._lost
            for lock in self._locks:
                lock.check()
            if self._guard is not None:
                self._guard.check()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction for writing. Raises StoreLost if another controller has taken over or
        the store is not the one that was opened. Raises StoreUnusable if the database cannot be
        used, for example on a full disk.
        """
        with self._translating():
            if self._guard is not None:
                self._guard.check()
            with self.engine.begin() as connection:
                self._require_epoch(connection)
                yield connection
            if self._guard is not None:
                self._guard.accept_own_change()
                self._guard.check()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction for reading. Raises StoreLost if a row is not as it was written."""
        with self._translating(), self.engine.connect() as connection:
            try:
                yield connection
            except (ValueError, TypeError, KeyError, json_format.ParseError) as error:
                raise damage_error(self._name, f"a row cannot be read ({error})") from error

    def _require_epoch(self, connection: Connection) -> None:
        if names_controller(self.controller_epoch):
            epoch.require_epoch(connection, self.controller_epoch)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            with translate_errors(self._name):
                yield
        except StoreLost as error:
            self._lost = error
            raise
