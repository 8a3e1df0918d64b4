"""Finds the lines that any of our patterns can match, with the multi-pattern engine Hyperscan."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS
from fleet_knowledge.server_log.symptoms.warning_patterns import WARNING_PATTERNS

_BULK_LINES = rb"(?:Decode|Prefill) batch|CCL"
_OTHER_LINES = (
    rb"HIP version|ROCm version|Hostname +:|Librccl",
    rb"server_args=|max_total_num_tokens=|--model\b.*(?:sglang|launch_server)",
    rb"(?:sglang|launch_server).*--model",
    rb"Init torch distributed|Init parallel|Load weight|Cache is allocated|Memory profiling",
    rb"Memory pool end|Captur(?:e|ing) |DeepGEMM|[Ff]lash[Ii]nfer autotune|Started server",
    rb"Application (?:startup|shutdown)|Uvicorn running|fired up and ready|Engine startup timings",
    rb"% Completed|%\|",
    rb"Finished server|Gracefully exiting|Shutting down|SIGTERM received|kill_process_tree",
    rb"CANCELLED AT|exited with code|Health check failed|/health|HTTP/[\d.]+\\?\" 5",
    rb"Traceback \(most recent|Exception in (?:thread|callback)|hit an exception",
    rb"File \\?\"|\sassert |CUDA initialization: ",
    rb"(?:Error|Exception|Interrupt|Exit|Warning)(?::|\s*$|[\\\"]|\S*\[|\S+:\d+:\d+ \[)",
    rb"(?:[Vv]ersion|VERSION)(?:[: =]+\d|.*CUDA[: =]+\d)|CUDA[: =]+\d.*[Vv]ersion|==\d",
    rb"(?:sglang|SGLang|SGLANG)(?::| )v\d",
)
"""What else the reader needs: launch phases, facts, requests, tracebacks, ends of servers."""
# Parts of a pattern that hold for a message, but not for the physical line that contains it
_MESSAGE_ONLY = re.compile(r"""\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[\^$"]""")
_QUOTE = r"\\?\""  # JSON escapes it
_REPLACED = {"^": "", "$": "", r"\b": "", '"': _QUOTE, r"\"": _QUOTE}
# As in parsing/log_lines.py, but inside one line of a block
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x00")
_RELEVANT, _BULK = 0, 1


class LineFilter:
    """Selects the lines of a block that must be read.

    Each reader needs its own filter: the engine's working memory serves one scan at a time.
    """

    def __init__(self, engine: Any, database: Any) -> None:
        self._database = database
        self._scratch = engine.Scratch(database)

    def select(self, block: bytes) -> tuple[Sequence[bytes], Collection[bytes]]:
        """Return (lines to look at, the ones of them that a pattern can match), in log order.

        Batch lines and NCCL lines are too many to select one by one: if a block has any, all its
        lines are returned to look at.
        """
        if b"\x1b" in block or b"\x00" in block:
            block = _ANSI.sub(b"", block)
        ends: list[int] = []
        bulk: list[int] = []

        def on_match(pattern: int, _begin: int, end: int, _flags: int, _context: object) -> None:
            (bulk if pattern == _BULK else ends).append(end)

        self._database.scan(block, on_match, scratch=self._scratch)
        relevant: list[bytes] = []
        line_end = -1
        for end in sorted(ends):
            if end > line_end + 1:
                begin = block.rfind(b"\n", 0, end - 1) + 1
                line_end = block.find(b"\n", end - 1)
                line_end = line_end if line_end >= 0 else len(block)
                relevant.append(block[begin:line_end])
        return (block.split(b"\n") if bulk else relevant), set(relevant)


def is_bulk_line(line: bytes) -> bool:
    """Return whether the filter leaves this line to the caller."""
    return b"CCL" in line or b"Decode batch" in line or b"Prefill batch" in line


def load_line_filter() -> LineFilter | None:
    """Return a filter for one reader, or None if Hyperscan is not installed or cannot run here."""
    compiled = _compiled_database()
    return LineFilter(*compiled) if compiled else None


@cache
def _compiled_database() -> tuple[Any, Any] | None:
    try:
        engine: Any = importlib.import_module("hyperscan")
    except ImportError:
        return None
    rows = [row.pattern for table in (LOG_SYMPTOMS, WARNING_PATTERNS) for row in table]
    patterns = [*(line_pattern(row) for row in rows), *_OTHER_LINES]
    superset = engine.HS_FLAG_PREFILTER | engine.HS_FLAG_MULTILINE
    database = engine.Database(mode=engine.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[*patterns, _BULK_LINES],
            ids=[*(_RELEVANT for _ in patterns), _BULK],
            flags=[*(superset for _ in patterns), engine.HS_FLAG_SINGLEMATCH],
        )
    except engine.error:  # a processor without SSSE3
        return None
    return engine, database


def line_pattern(pattern: re.Pattern[str]) -> bytes:
    """Return a pattern that matches every physical line with a message that `pattern` matches."""
    return _MESSAGE_ONLY.sub(
        lambda found: _REPLACED.get(found[0], found[0]), pattern.pattern
    ).encode()
