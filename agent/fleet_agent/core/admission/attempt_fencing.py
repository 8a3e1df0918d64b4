"""Decides whether an attempt of a trial may start on a host that already knows others of it."""

from __future__ import annotations

from collections.abc import Collection

from fleet_protos.errors import Superseded


def attempts_to_end(
    trial_id: str, attempt: int, active: Collection[int], newest_known: int
) -> tuple[int, ...]:
    """Return the active attempts that must end before this one starts, in ascending order.

    `newest_known` is the newest attempt of the trial that has already ended, 0 if there is none.
    Raises Superseded if a newer attempt than this one is known.
    """
    newest = max(*active, newest_known, 0)
    if attempt < newest:
        raise Superseded(
            f"trial {trial_id}: attempt {attempt} is refused, this host already has the newer "
            f"attempt {newest}"
        )
    return tuple(sorted(active))
