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
    """Return an engine for a file path (SQLite) or a SQLAlchemy URL such as postgresql+psycopg://…,
    with its tables at HEAD.

    Raises ConfigError if the database cannot be opened, Conflict if a newer benchfleet made its
    tables.
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
    """Return the file of an SQLite store given as a path or URL, or None for another database.
    Raises ConfigError for an invalid URL.
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
    cause = getattr(error, "orig", None) or error
    hint = "check that it is a benchfleet store and that you may write to it"
    if isinstance(error, ImportError):
        hint = (
            "install the driver with `pip install 'benchfleet[postgres]'`, "
            "and write the address as postgresql+psycopg://…"
        )
    return ConfigError(f"cannot open the store {redact_password(address)}: {cause}", hint)


def redact_password(address: str) -> str:
    """Return the address without its password, for messages."""
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
        message = (
            f"the store {redact_password(address)} has tables of revision {found or 'none'}, "
            f"but this version reads {HEAD}"
        )
        raise ConfigError(message, "run a job first: a controller updates the tables")
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
    """Make commits durable before they return, and let readers never wait for the writer."""
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
        message = (
            f"the store {redact_password(address)} has tables of revision {found}, "
            "which this version does not know"
        )
        raise Conflict(message, "update benchfleet") from error
    except DatabaseError as error:
        raise ConfigError(
            f"cannot create the tables of {redact_password(address)}: {error.orig}",
            "use an empty database",
        ) from error


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of the database as ConfigError (it cannot hold a value) or StoreUnusable (it
    cannot be used now).
    """
    try:
        yield
    except DataError as error:  # PostgreSQL: a NUL, or a text that is too long for its column
        raise ConfigError(
            f"the store cannot hold a value: {str(error.orig)[:200]!a}",
            "look for unusual characters in it",
        ) from error
    except DBAPIError as error:
        if not isinstance(error, OperationalError) and not error.connection_invalidated:
            raise
        raise StoreUnusable(
            f"the store cannot be used: {error.orig}",
            "no event is lost: agents keep what is not stored yet",
        ) from error
