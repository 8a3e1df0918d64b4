"""Notices if a SQLite store is damaged or is no longer the store that its controller opened."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from fleet_controller.store.database import connect, damage_error, translate_errors
from fleet_controller.store.file_lock import require_same_file
from fleet_protos.errors import ConfigError

_SUFFIXES = ("", "-wal", "-shm")
_CHECK_LIMIT_S = 5.0  # about 5 GB of a store that is in memory
_STEPS_PER_CALL = 100_000  # of SQLite's machine, between two looks at the clock
_OK = "ok"


class SqliteGuard:
    """The files of an open SQLite store, as its controller knows them.

    If the store has a change that the controller did not make, the whole store is checked. Usually
    such a change is harmless: another program has moved events from the -wal file into the store.
    But it may be damage.
    """

    def __init__(self, path: Path, check_content: Callable[[Connection], object]) -> None:
        """Remember the files and check the whole store once. `check_content` raises if the file
        holds another store. Raises StoreLost.
        """
        self._path = path
        self._check_content = check_content
        files = [Path(f"{path}{suffix}") for suffix in _SUFFIXES]
        self._files = {file: file.stat() for file in files}
        self._change = self._last_change()
        self._check_whole_store()

    def check(self) -> None:
        """Raise StoreLost if the store was removed, moved, replaced or damaged."""
        for file, opened in self._files.items():
            require_same_file(file, opened)
        change = self._last_change()
        if change != self._change:
            self._check_whole_store()
            self._change = change

    def accept_own_change(self) -> None:
        """Remember the state of the store after a transaction of its controller, so that this
        change is not checked.
        """
        self._change = self._last_change()

    def _last_change(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_size, status.st_mtime_ns

    def _check_whole_store(self) -> None:
        """Read the store through a new connection, which has no page in memory. A very large store
        is read only as far as the time limit allows.
        """
        try:
            engine = connect(str(self._path), read_only=True)
        except ConfigError as error:
            raise damage_error(str(self._path), error.message) from error
        try:
            with translate_errors(str(self._path)), engine.connect() as connection:
                if fault := _first_fault(connection):
                    raise damage_error(str(self._path), fault)
                self._check_content(connection)
        finally:
            engine.dispose()


def _first_fault(connection: Connection) -> str:
    """Return the first fault in the structure of the store, or an empty text if none was found in
    time.
    """
    deadline_s = time.monotonic() + _CHECK_LIMIT_S
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS_PER_CALL)
    try:
        found = str(connection.exec_driver_sql("pragma quick_check(1)").scalar())
    except OperationalError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
            raise
        found = _OK
    finally:
        driver.set_progress_handler(None, 0)
    return "" if found == _OK else found.splitlines()[-1]
