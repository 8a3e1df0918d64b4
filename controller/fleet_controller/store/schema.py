"""Owns the opening of a database and the state of its tables; knows no job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fleet_protos.errors import ConfigError, Conflict
from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

HEAD = "0001"  # the newest revision in migrations/versions; a test compares


def connect(address: str, *, read_only: bool = False) -> Engine:
    """An engine for a file path (SQLite) or a SQLAlchemy URL such as postgresql+psycopg://… with its tables at HEAD.

    Raises ConfigError when it cannot be opened, Conflict when a newer benchfleet made its tables.
    """
    try:
        engine = create_engine(address) if "://" in address else _sqlite(Path(address), read_only)
        with engine.connect() as connection:
            found = _revision(connection)
        if found == HEAD:
            return engine
        if read_only:
            raise ConfigError(f"the store {address} has tables of revision {found or 'none'}, this version reads {HEAD}", "run a job first")
        _upgrade(engine, address, found)
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise ConfigError(f"cannot open the store {address}: {cause}", "is it a benchfleet store, and may you write there?") from error
    return engine


def _sqlite(path: Path, read_only: bool) -> Engine:
    if read_only:
        if not path.exists():
            raise ConfigError(f"there is no store at {path}", "run a job first: `fleetctl run JOB`")
        engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))
        engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", _prepare_read_only if read_only else _prepare)
    return engine


def _prepare(connection: Any, _: Any) -> None:
    """A commit is on disk before it returns, and readers never wait for the writer."""
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepare_read_only(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA busy_timeout=10000")


def _revision(connection: Any) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return str(connection.execute(text("select version_num from alembic_version")).scalar() or "")


def _upgrade(engine: Engine, address: str, found: str) -> None:
    from alembic import command  # only when there is something to do: it takes longer to import than a store to open
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        raise Conflict(f"the store {address} has tables of revision {found}, unknown to this version", "update benchfleet") from error
    except DatabaseError as error:
        raise ConfigError(f"the tables of {address} cannot be made: {error.orig}", "use an empty database") from error
