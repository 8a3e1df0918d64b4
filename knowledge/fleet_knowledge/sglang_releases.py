"""Decides how certain it is that a fact about SGLang holds in one version. Only some releases were
inspected.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from fleet_knowledge.release import Release, VersionRange

NEWEST_SGLANG_READ = "0.5.23"
_ANY = VersionRange()


class Certainty(IntEnum):
    """Says whether a fact holds for a server. MAYBE is for a version that is unknown or was not
    inspected.
    """

    NO = 0
    MAYBE = 1
    YES = 2


def certainty_of(versions: VersionRange, release: Release | None) -> Certainty:
    """Return YES if `versions` includes the release or includes every version. Return MAYBE if the
    release is unknown. Otherwise return NO.
    """
    if versions == _ANY:
        return Certainty.YES
    if release is None:
        return Certainty.MAYBE
    return Certainty.YES if versions.contains(release) else Certainty.NO


def certainty_of_presence(
    first: str, last: str, read: Sequence[Release], release: Release | None
) -> Certainty:
    """Return whether something exists in `release`, when only the releases `read` were inspected.

    `first` and `last` are the oldest and the newest inspected release that has it. An empty `last`
    means that the newest inspected release still has it. For a release between one that has it and
    the next one that lacks it, the answer is MAYBE. An unknown release (None) gives MAYBE too,
    unless every inspected release has it.
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
    """Return the SGLang version in the tag of a container image, such as
    `lmsysorg/sglang:v0.4.6.post4-cu124`.

    Return None if the image is not an SGLang image or the tag has no version of at least three
    numbers.
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    if not name or "/" in tag or "sglang" not in name.rsplit("/", 1)[-1].lower():
        return None
    found = Release.parse(tag)
    return found if found and len(found.numbers) >= 3 else None
