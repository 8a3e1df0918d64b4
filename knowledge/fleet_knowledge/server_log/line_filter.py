"""Finds the lines of a log that one of our patterns may match. It uses Hyperscan, an engine that
searches for many texts at once.

Hyperscan searches only for literal texts that the patterns require. When Hyperscan 5.4.12 is given
the patterns themselves, it misses matches: for example `Xid[^,]*:\\d+, Fatal` in a line with more
than 20 characters between `Xid` and `:`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from fleet_knowledge.server_log.line_shapes import is_request_log
from fleet_knowledge.server_log.regex_literals import required_literals
from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS
from fleet_knowledge.server_log.symptoms.warning_patterns import WARNING_PATTERNS

_BULK_TEXTS = (b"Decode batch", b"Prefill batch", b"CCL")
_OTHER_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"HIP version|ROCm version|Hostname +:|Librccl",
        r"server_args=|max_total_num_tokens=|--model\b|CUDA initialization: ",
        r"Init torch distributed|Init parallel|Load weight|Cache is allocated|Memory profiling",
        r"Memory pool end|Captur(?:e|ing) |DeepGEMM|[Ff]lash[Ii]nfer autotune|Started server",
        r"Application (?:startup|shutdown)|Uvicorn running|fired up and ready",
        r"Engine startup timings|% Completed|%\|",
        r"Finished server|Gracefully exiting|Shutting down|SIGTERM received|kill_process_tree",
        r"CANCELLED AT|exited with code|Health check failed|/health|\" 5",
        r"Traceback \(most recent|Exception in (?:thread|callback)|hit an exception",
        r"File |assert |(?:Error|Exception|Interrupt|Exit|Warning)",
        r"[Vv]ersion|VERSION|==|(?:sglang|SGLang|SGLANG)(?::| )v",
    )
)
"""What else the reader needs: launch phases, facts, requests, tracebacks, ends of servers."""
# As in parsing/log_lines.py, but inside one line of a block
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x00")
_QUOTED = re.compile(r'(?<=.)(?=")')  # JSON writes a backslash there
_RELEVANT, _BULK = 0, 1


class LineFilter:
    """Selects the lines of a log that must be read.

    Each reader needs its own filter, because the engine's working memory serves one scan at a time.
    """

    def __init__(self, engine: Any, database: Any) -> None:
        self._database = database
        self._scratch = engine.Scratch(database)

    def select(self, block: bytes) -> tuple[Sequence[bytes], Collection[bytes]]:
        """Return (lines to look at, in log order; the lines among them that a pattern may match).

        Batch lines and NCCL lines are too many to select one by one. If the text contains such a
        line, all its lines are returned to look at.
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
                line = block[begin:line_end]
                if not is_request_log(line):
                    relevant.append(line)
        return (block.split(b"\n") if bulk else relevant), set(relevant)


def is_bulk_line(line: bytes) -> bool:
    """Return whether a line may be a batch line or an NCCL line. The caller must read such a line
    even if the filter found no pattern for it.
    """
    return any(map(line.__contains__, _BULK_TEXTS))


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
    texts = sorted(required_texts())
    database = engine.Database(mode=engine.HS_MODE_BLOCK)
    try:
        database.compile(
            expressions=[*texts, *_BULK_TEXTS],
            ids=[*(_RELEVANT for _ in texts), *(_BULK for _ in _BULK_TEXTS)],
            flags=[*(0 for _ in texts), *(engine.HS_FLAG_SINGLEMATCH for _ in _BULK_TEXTS)],
            literal=True,
        )
    except engine.error:  # a processor without SSSE3
        return None
    return engine, database


def required_texts() -> set[bytes]:
    """Return the texts to search for. A line with a message that any pattern matches contains at
    least one of these texts.
    """
    rows = [row.pattern for table in (LOG_SYMPTOMS, WARNING_PATTERNS) for row in table]
    return {
        max(_QUOTED.split(text), key=len).encode()
        for pattern in (*rows, *_OTHER_PATTERNS)
        for text in required_literals(pattern)
    }
