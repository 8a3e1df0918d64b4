"""Opens the database of a store and brings its tables up to date."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Engine,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import DatabaseError, DataError, DBAPIError, OperationalError, SQLAlchemyError

from fleet_controller.store.file_lock import read_note
from fleet_protos.errors import ConfigError, Conflict, FleetError, StoreLost, StoreUnusable

# of PostgreSQL: data corrupted, index corrupted, undefined table, undefined column
_POSTGRESQL_DAMAGE = ("XX001", "XX002", "42P01", "42703")
HEAD = "0004"  # the newest revision in migrations/versions; a test compares


def connect(address: str, *, read_only: bool = False) -> Engine:
    """Return an engine for a SQLite file path or a SQLAlchemy URL such as postgresql+psycopg://….
    The tables are brought to revision HEAD first.

    Raises ConfigError if the database cannot be opened. Raises Conflict if a newer version of
    benchfleet made the tables.
    """
    try:
        path = sqlite_path(address)
        engine = _sqlite(path, read_only) if path else create_engine(address, pool_pre_ping=True)
    except (SQLAlchemyError, ImportError, OSError) as error:
        raise unusable_error(address, error) from error
    try:
        _bring_to_head(engine, address, read_only)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, SQLAlchemyError):
            raise unusable_error(address, error) from error
        raise
    return engine


def sqlite_path(address: str) -> Path | None:
    """Return the file of a SQLite store that is given as a path or URL. Return None for another
    database. Raises ConfigError for an invalid URL.
    """
    if "://" not in address:
        return Path(address)
    try:
        url = make_url(address)
    except SQLAlchemyError as error:
        raise unusable_error(address, error) from error
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def unusable_error(address: str, error: Exception) -> FleetError:
    """Return the error for a store that cannot be opened."""
    if isinstance(error, DBAPIError) and is_damage(error):
        return damage_error(store_name(address), str(error.orig))
    store, cause = redact_password(address), getattr(error, "orig", None) or error
    hint = "check that the address names a benchfleet store and that you may write to the store"
    if isinstance(error, ImportError):
        hint = (
            "install the driver with `pip install 'benchfleet[postgres]'`, "
            "and write the address as postgresql+psycopg://…"
        )
    return ConfigError(f"cannot open the store {store}: {cause}", hint)


def store_gone_error(path: Path, note: str) -> ConfigError:
    """Return the error for a store that has disappeared. A new and empty store in its place would
    lose the results that agents still hold. `note` is the text in the lock file about the store.
    """
    return ConfigError(
        f"the store {path} is gone: {note.strip()} was here at the last start",
        f"put the store back or restore a backup; to begin with an empty store, remove {path}.lock",
    )


def store_name(address: str) -> str:
    """Return the name of the store for messages: its file, or its address without the password."""
    return str(sqlite_path(address) or redact_password(address))


def redact_password(address: str) -> str:
    """Return the store's address without its password, for use in messages."""
    try:
        return (
            make_url(address).render_as_string(hide_password=True) if "://" in address else address
        )
    except SQLAlchemyError:
        return address.partition("://")[0] + "://…"


def _bring_to_head(engine: Engine, address: str, read_only: bool) -> None:
    with engine.connect() as connection:
        found = _revision(connection)
    if found == HEAD:
        return
    if read_only:
        store, revision = redact_password(address), found or "none"
        message = (
            f"the store {store} has tables of revision {revision}, "
            f"but this version of benchfleet reads revision {HEAD}"
        )
        raise ConfigError(message, "run a job first, because a controller updates the tables")
    _upgrade(engine, address, found)


def _sqlite(path: Path, read_only: bool) -> Engine:
    if read_only:
        if not path.exists():
            if note := read_note(Path(f"{path}.lock")):
                raise store_gone_error(path, note)
            raise ConfigError(
                f"there is no store at {path}",
                "run a job with `fleetctl run FILE`, or start a controller with `fleetctl up`",
            )
        engine = create_engine(
            URL.create(
                "sqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"}
            )
        )
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))
        engine = create_engine(URL.create("sqlite", database=str(path)))
    event.listen(engine, "connect", _prepare_read_only if read_only else _prepare)
    return engine


def _prepare(connection: Any, _: Any) -> None:
    """Set up a SQLite connection so that commits are durable before they return and readers never
    wait for the writer.
    """
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_read_only(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA busy_timeout=10000")


def _revision(connection: Any) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.execute(text("select version_num from alembic_version")).scalar() or "")


def _upgrade(engine: Engine, address: str, found: str) -> None:
    # Imported only when needed: the import takes longer than opening a store.
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        store = redact_password(address)
        message = (
            f"the store {store} has tables of revision {found}, "
            "which this version of benchfleet does not know"
        )
        raise Conflict(message, "update benchfleet") from error
    except DatabaseError as error:
        store = redact_password(address)
        raise ConfigError(
            f"cannot create the tables of the store {store}: {error.orig}",
            "use an empty database",
        ) from error


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Translate errors of the database in the with block. Messages call the store `name`.

    Raises ConfigError for a value that the database cannot hold. Raises StoreUnusable if the
    database cannot be used now. Raises StoreLost if the database is damaged.
    """
    try:
        yield
    except DataError as error:  # PostgreSQL: a NUL, or a text that is too long for its column
        reason = str(error.orig)[:200]
        raise ConfigError(
            f"the store cannot hold a value: {reason!a}",
            "look for unusual characters in the value",
        ) from error
    except DBAPIError as error:
        if is_damage(error):
            raise damage_error(name, str(error.orig)) from error
        if not isinstance(error, OperationalError) and not error.connection_invalidated:
            raise
        raise unusable_now(error) from error


def unusable_now(error: DBAPIError) -> StoreUnusable:
    """Return the error for a database that may be usable again later."""
    return StoreUnusable(
        f"the store cannot be used: {error.orig}",
        "no event is lost, because agents keep events until the controller has stored them",
    )


def is_damage(error: DBAPIError) -> bool:
    """Return whether the database reports that its files or tables are damaged."""
    sqlite_code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    return (
        sqlite_code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or str(error.orig).startswith("no such table")
        or getattr(error.orig, "sqlstate", "") in _POSTGRESQL_DAMAGE
    )


def damage_error(name: str, what: str) -> StoreLost:
    """Return the error for a damaged store."""
    tool = (
        "the backups of its PostgreSQL"
        if "://" in name
        else f"a backup, or what `sqlite3 {name} .recover` can still read"
    )
    return StoreLost(
        f"the store {name} is damaged: {what}",
        f"keep a copy of the store, then restore {tool}, as docs/durability.md says; agents keep "
        "the events that are not stored",
    )
