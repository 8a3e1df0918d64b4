"""Owns how files travel in the text of a job, from where they are to controller and store: packed,
behind its last line. Reads no file.

The text of a job is what is submitted, stored and read again, so what belongs to it must be in it.
A comment keeps it a job file for everybody else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from fleet_protos.trial_types import AttachedFile

_BEGIN: Final = "# Files of this job as fleetctl packed them; not for editing."
_LINE: Final = re.compile(r'^# file ("(?:[^"\\]|\\.)*") ([0-9a-f]{64}) ([A-Za-z0-9+/]+=*)$')


def split_attached_files(text: str) -> tuple[str, tuple[AttachedFile, ...]]:
    """The job's own text, and the files behind it; lines there that are none are left out."""
    own, mark, behind = text.rpartition(f"\n{_BEGIN}\n")
    if not mark:
        return text, ()
    found = (_LINE.match(line) for line in behind.split("\n"))
    return f"{own}\n", tuple(
        AttachedFile(json.loads(match[1]), match[2], match[3]) for match in found if match
    )


def join_attached_files(text: str, files: Iterable[AttachedFile]) -> str:
    """The text of a job with its files behind it; the text alone when there are none."""
    lines = [f"# file {json.dumps(file.name)} {file.sha256} {file.content}" for file in files]
    return "\n".join((text.rstrip("\n"), _BEGIN, *lines, "")) if lines else text
