"""Reads durations and ratios as people write them, and writes them back."""

from __future__ import annotations

import math
import re

_NUMBER = r"[0-9]+(\.[0-9]+)?\s*"
_UNIT_S = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 0.001,
}  # in the order in which they are written
DURATION_PATTERN = (
    rf"^\s*({_NUMBER}|" + "".join(rf"({_NUMBER}{unit}\s*)?" for unit in _UNIT_S) + ")$"
)
RATIO_PATTERN = rf"^\s*[-+]?{_NUMBER}%?\s*$"

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|d|h|m|s)")
_DURATION = re.compile(DURATION_PATTERN)
_PLAIN = re.compile(rf"^\s*{_NUMBER}$")
_RATIO = re.compile(r"^\s*([-+]?[0-9]+(?:\.[0-9]+)?)\s*(%?)\s*$")
_LONGEST_S = 366 * 86400.0
_LONGEST_TEXT = 64


def read_duration(written: object) -> float:
    """Return the seconds of `250ms`, `60s`, `30m`, `1h30m` or a plain number of seconds.

    Raises ValueError for anything else, for a negative duration and for more than a year. The text
    of the error can be shown to the user.
    """
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise ValueError("is not a duration")
    seconds = _duration_of_text(written) if isinstance(written, str) else float(written)
    if not 0 <= seconds <= _LONGEST_S:
        raise ValueError("is negative" if seconds < 0 else "is longer than a year")
    return seconds


def _duration_of_text(text: str) -> float:
    if len(text) > _LONGEST_TEXT:
        raise ValueError("is not a duration")
    if _PLAIN.match(text):
        return float(text)
    if not text.strip() or not _DURATION.match(text):
        raise ValueError("is not a duration")
    return sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))


def read_ratio(written: object) -> float:
    """Return the ratio that `2%` or `0.02` means, here 0.02. Raises ValueError for anything else.
    The text of the error can be shown to the user.
    """
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise ValueError("is not a percentage")
    if not isinstance(written, str):
        return float(written)
    match = _RATIO.match(written) if len(written) <= _LONGEST_TEXT else None
    if not match:
        raise ValueError("is not a percentage")
    return float(match[1]) / 100 if match[2] else float(match[1])


def write_duration(seconds: float) -> str:
    """Return the duration as a person would write it, such as `1h30m`, `250ms` or `0s`. It is
    rounded to whole milliseconds.
    """
    left_ms = round(seconds * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        size_ms = round(_UNIT_S[unit] * 1000)
        count, left_ms = divmod(left_ms, size_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def write_ratio(share: float) -> str:
    """Return the ratio in percent without needless digits, such as `2%` or `0.5%`."""
    percent = share * 100
    return f"{percent:.6g}%" if math.isfinite(percent) else f"{share}"
