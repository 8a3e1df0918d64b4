"""Owns which attempt of a trial may begin on a host beside those that it knows; begins and ends
none.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet_protos.errors import Superseded


def attempts_to_end(
    trial_id: str, attempt: int, active: Collection[int], newest_known: int
) -> tuple[int, ...]:
    """The active attempts that must end before this one begins, all older than it. `newest_known`:
    of those that are over; 0 = none.

    Raises Superseded when a newer one is known: this one comes too late.
    """
    newest = max(*active, newest_known, 0)
    if attempt < newest:
        raise Superseded(
            f"trial {trial_id}: attempt {newest} is known here, attempt {attempt} comes too late"
        )
    return tuple(sorted(active))
