"""Holds the table of NCCL's and RCCL's variables as one mapping, and looks variables up by name.

The source of every row, unless it names another, is NCCL's environment documentation (2.30) and the
sources of 2.18 - 2.30.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from fleet_knowledge.nccl.variables import (
    network_variables,
    rccl_variables,
    system_variables,
    transfer_variables,
)
from fleet_knowledge.nccl.variables.algo_proto_grammar import (
    FUNCTIONS,
    PROTOCOLS,
    allowed_words,
    parse_entries,
)
from fleet_knowledge.nccl.variables.undocumented_variables import FOREIGN_OWNERS, UNDOCUMENTED
from fleet_knowledge.nccl.variables.value_types import InvalidValueEffect
from fleet_knowledge.nccl.variables.variable import NcclVariable
from fleet_knowledge.release import Release

NEWEST_NCCL_READ = "2.30.7"
"""The newest NCCL whose sources the table was checked against."""

_TABLES = (
    transfer_variables.TRANSFER_VARIABLES,
    system_variables.SYSTEM_VARIABLES,
    network_variables.NETWORK_VARIABLES,
    rccl_variables.RCCL_VARIABLES,
)

VARIABLES: Mapping[str, NcclVariable] = {row.name: row for table in _TABLES for row in table}
"""Every documented variable by its name."""


def find_variable(name: str) -> NcclVariable | None:
    """Return the row of `name`; None for a name that no documentation lists."""
    return VARIABLES.get(name)


def is_nccl_name(name: str) -> bool:
    """Return whether NCCL or RCCL could read this name."""
    return name.startswith(("NCCL_", "RCCL_"))


def is_known(name: str) -> bool:
    """Return whether the documentation or source of some version has the name, or another tool is
    known to read it.
    """
    return name in VARIABLES or name in UNDOCUMENTED or foreign_owner(name) != ""


def foreign_owner(name: str) -> str:
    """Return the other tool that reads a name like NCCL's, such as a plug-in or PyTorch.

    Return an empty text for NCCL's own names and for unknown names.
    """
    return next(
        (
            owner
            for start, owner in FOREIGN_OWNERS.items()
            if name == start or (start.endswith("_") and name.startswith(start))
        ),
        "",
    )


def nearest_variable(name: str) -> str:
    """Return the known name most similar to `name`; empty if none is similar."""
    found = get_close_matches(name[:80], [*VARIABLES, *UNDOCUMENTED], n=1, cutoff=0.75)
    return found[0] if found else ""


def is_legal(name: str, value: str, release: Release | None = None) -> bool:
    """Return False if NCCL of `release` refuses, ignores, misreads or adjusts `value`. Values of
    unknown names are always legal.
    """
    row = VARIABLES.get(name)
    fault = row.fault(value, release) if row else None
    return fault is None or fault.outcome is InvalidValueEffect.DISCOURAGED


def needs_output_check(name: str, value: str) -> bool:
    """Return whether the value explicitly allows the protocol LL128.

    LL128 corrupts data on hardware that does not keep the order of 128-byte stores.
    """
    if name == "RCCL_LL128_FORCE_ENABLE":
        return value.strip() == "1"
    if name != "NCCL_PROTO" or all(part.excludes for part in parse_entries(value)):
        return False
    return any("ll128" in allowed_words(value, function, PROTOCOLS) for function in FUNCTIONS)
