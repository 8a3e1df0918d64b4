"""Owns how sure a fact about SGLang is for one version: the releases that were read, and ranges
between them. Knows no fact itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from fleet_knowledge.release import Release, VersionRange

NEWEST_SGLANG_READ = "0.5.23"
_ANY = VersionRange()


class Certainty(IntEnum):
    """Whether a fact holds for a server whose version may not be known."""

    NO = 0
    MAYBE = 1
    YES = 2


def certainty_of(versions: VersionRange, release: Release | None) -> Certainty:
    """YES for a version within, or when the fact holds in any version; MAYBE when the version is
    not known.
    """
    if versions == _ANY:
        return Certainty.YES
    if release is None:
        return Certainty.MAYBE
    return Certainty.YES if versions.contains(release) else Certainty.NO


def certainty_of_presence(
    first: str, last: str, read: Sequence[Release], release: Release | None
) -> Certainty:
    """Whether what was first and last seen in two of the releases `read` is in `release`; an empty
    `last` means the newest still has it.

    Between two releases that were read nothing is known of the ones that lie there: what only one
    of the two has may be in them.
    """
    if release is None:
        return Certainty.YES if first == str(read[0]) and not last else Certainty.MAYBE
    if VersionRange(first, last).contains(release):
        return Certainty.YES
    start, end = Release.parse(first), Release.parse(last)
    below = max((known for known in read if start and known < start), default=None)
    above = min((known for known in read if end and end < known), default=None)
    before_it = below is not None and start is not None and below < release < start
    after_it = above is not None and end is not None and end < release < above
    return Certainty.MAYBE if before_it or after_it else Certainty.NO


def release_of_image(image: str) -> Release | None:
    """The SGLang version in the tag of a container image, such as
    `lmsysorg/sglang:v0.4.6.post4-cu124`; None when none is there.
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    if not name or "/" in tag or "sglang" not in name.rsplit("/", 1)[-1].lower():
        return None
    found = Release.parse(tag)
    return found if found and len(found.numbers) >= 3 else None
