"""Decides whether an attempt may start on a host that has seen other attempts of the same trial."""

from __future__ import annotations

from collections.abc import Collection

from fleet_protos.errors import Superseded


def attempts_to_end(
    trial_id: str, attempt: int, active: Collection[int], newest_known: int
) -> tuple[int, ...]:
    """Return the active attempts of a trial that must end before `attempt` starts, in ascending
    order.

    `newest_known` is the newest attempt of the trial that has already ended, 0 if there is none.
    Raises Superseded if an attempt newer than `attempt` is known.
    """
    newest = max(*active, newest_known, 0)
    if attempt < newest:
        raise Superseded(
            f"trial {trial_id}: attempt {attempt} is refused, because this host already has the "
            f"newer attempt {newest}"
        )
    return tuple(sorted(active))
