"""Opens the database of a store and brings its tables up to date."""

from __future__ import annotations

import os
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

from fleet_protos.errors import ConfigError, Conflict, StoreUnusable

HEAD = "0003"  # the newest revision in migrations/versions; a test compares


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


def unusable_error(address: str, error: Exception) -> ConfigError:
    """Return the error for a store that cannot be opened."""
    store, cause = redact_password(address), getattr(error, "orig", None) or error
    hint = "check that it is a benchfleet store and that you may write to it"
    if isinstance(error, ImportError):
        hint = (
            "install the driver with `pip install 'benchfleet[postgres]'`, "
            "and write the address as postgresql+psycopg://…"
        )
    return ConfigError(f"cannot open the store {store}: {cause}", hint)


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
            raise ConfigError(
                f"there is no store at {path}",
                "run a job with `fleetctl run JOB`, or start a controller with `fleetctl up`",
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
def translate_errors() -> Iterator[None]:
    """Translate errors of the database in the with block. Raises ConfigError for a value that the
    database cannot hold. Raises StoreUnusable if the database cannot be used now.
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
        if not isinstance(error, OperationalError) and not error.connection_invalidated:
            raise
        raise StoreUnusable(
            f"the store cannot be used: {error.orig}",
            "no event is lost, because agents keep events until the controller has stored them",
        ) from error
