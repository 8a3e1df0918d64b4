"""Decides from the first line of a shape how to treat all lines of that shape.

The shape of a line is the line without its digits and without long hexadecimal ids.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fleet_knowledge.server_log.diagnosis.accumulator import LogAccumulator
from fleet_knowledge.server_log.parsing.batch_columns import (
    DIGITS,
    BatchLineLayout,
    detect_layout,
)
from fleet_knowledge.server_log.parsing.log_lines import read_log_lines

# Lines of one shape in which the numbers decide what the line means
NUMBERS_MATTER = re.compile(
    rb"[Ee]rror \d|[Ee]rror: \d|exit(?:ed)?\W|[Ee]xit code|[Xx]id|rc=|signal|timeout|status"
)
# Request logs contain the texts of requests, so each line has its own shape
REQUEST_LOGS = (b"Receive: obj=", b"Finish: obj=")
_BAR = re.compile(rb"%\|| Completed \|")
_HEALTH = re.compile(rb'"GET /health(?:_generate)?[^"]*" (\d\d\d)')
_ACCESS = re.compile(rb'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) /[^"]*" (\d\d\d) [A-Z]')
# Pointers, counters and ids make every line different, and no reader needs them
_CALL_IDS = re.compile(rb"(?<=opCount )[0-9a-f]+|0x[0-9a-f]+")
_IDS = re.compile(rb"[0-9a-f]{8,}")
# A call in the form of NCCL_DEBUG_SUBSYS=COLL; the groups are what `without_ids` keeps of it
_CALL = re.compile(
    rb"([^\x1b\x00{]*? NCCL INFO \w+: opCount )[0-9a-f]+( sendbuff )(?:0x)?[0-9a-f]+"
    rb"( recvbuff )(?:0x)?[0-9a-f]+( [a-z0-9 ]{1,99} comm )0x[0-9a-f]+"
    rb"( \[nranks=\d+\] stream )0x[0-9a-f]+"
)


@dataclass(slots=True)
class ProgressBar:
    """Action for the lines of one progress bar: only the last line is read."""

    raw: bytes = b""
    order: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """Action for lines that report answered requests: only the results of the requests count."""

    healthy: bool | None  # result of a health check; None for other requests
    failed: bool


class Skip:
    """Action for lines that say nothing about the server: they are skipped."""


class NcclLine:
    """Action for NCCL lines. The NCCL reader gets equal lines only once, with the number of times
    that they occurred.
    """


class ReadEachLine:
    """Action for lines that must be read message by message, every time that their shape occurs."""


SKIP: Final = Skip()
NCCL_LINE: Final = NcclLine()
READ_EACH_LINE: Final = ReadEachLine()
Action = BatchLineLayout | ProgressBar | AnsweredRequest | Skip | NcclLine | ReadEachLine


def action_for_shape(raw: bytes) -> Action | None:
    """Return the action for all lines of this line's shape. Return None if the messages of the line
    must be read before the action is known.
    """
    if b" batch" in raw and (layout := detect_layout(raw)):
        return layout
    if is_request_log(raw) or not LogAccumulator.may_be_relevant(raw):
        return SKIP
    if len(list(read_log_lines(raw))) != 1:
        return None
    if b"HTTP/" in raw and (found := _ACCESS.search(raw)):
        return _access_log_action(raw, found)
    if b"NCCL INFO" in raw:
        return None if LogAccumulator.is_warning_or_failure(raw) else NCCL_LINE
    return ProgressBar() if _BAR.search(raw) else None


def is_request_log(raw: bytes) -> bool:
    """Return whether a line logs a request with its text."""
    return any(map(raw[:200].__contains__, REQUEST_LOGS))


def without_ids(raw: bytes) -> tuple[bytes, bytes]:
    """Return (the line, its shape). In the line of an NCCL call, the call's counter and the
    pointers are replaced by 0.
    """
    if b" batch" in raw:
        return raw, raw.translate(None, DIGITS)  # a layout needs the position of every number
    if b"opCount" in raw:
        raw = _CALL_IDS.sub(b"0", raw)
    return raw, _IDS.sub(b"", raw).translate(None, DIGITS)


def nccl_call_without_ids(raw: bytes) -> bytes | None:
    """Return the line of a plain NCCL call with 0 in place of its counter and pointers, or None for
    other lines.

    This is faster than `without_ids`.
    """
    found = _CALL.fullmatch(raw)
    return b"0".join((*found.groups(), b"")) if found else None


def _access_log_action(raw: bytes, found: re.Match[bytes]) -> AnsweredRequest | Skip:
    health, failed = _HEALTH.search(raw), found[1].startswith(b"5")
    if not health and not failed:
        return SKIP
    return AnsweredRequest(health[1] == b"200" if health else None, failed)
