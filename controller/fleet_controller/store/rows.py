"""Owns the form in which the store keeps what was decided about a host; reads and writes nothing
itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping

from fleet_controller.core.quarantine import HostFailure, HostRecord


def host_columns(record: HostRecord) -> dict[str, Any]:
    """The row of a record. PostgreSQL holds no NUL."""
    failures = [asdict(failed) for failed in record.failures]
    row = {name: getattr(record, name) for name in HostRecord.__dataclass_fields__} | {
        "failures": json.dumps(failures)
    }
    return {
        name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
        for name, value in row.items()
    }


def host_record_of(row: RowMapping) -> HostRecord:
    """The record of a row."""
    return HostRecord(
        **{
            **row,
            "failures": tuple(HostFailure(**failed) for failed in json.loads(row["failures"])),
        }
    )
