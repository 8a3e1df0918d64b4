"""Owns the quick search of many unlike lines for the few that can tell anything: words that the
tables' patterns need. Reads no line.

Each pattern needs one of a few texts (`literals`). Texts that share a fragment are looked for
together, in all lines at once, and with the commonest characters left out of both, so that less is
read. A line with a fragment is kept when it holds one of the texts themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from fleet_knowledge.server_log.symptoms.regex_literals import is_unanchored, required_literals
from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS
from fleet_knowledge.server_log.symptoms.warning_patterns import WARNING_PATTERNS

_DIGITS = b"0123456789"
# Characters left out, the most first: a text is looked for where enough of it is left, among the
# fewest bytes
_REDUCTION_LEVELS = (
    _DIGITS + b' abcdefghijklmnopqrstuvwxyz[](),.:;-TP"/',
    _DIGITS + b" aeionstrhldcu[],.:TP",
    _DIGITS + b" aeionst",
    _DIGITS,
)
_CHUNK_BYTES = 28_000  # bytes: a longer text is searched by a slower way
_SHORTEST = 4  # characters that must be left of a text
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])|\x00")

_OTHER_PATTERNS = tuple(
    re.compile(words)
    for words in (
        r"(?:Decode|Prefill) batch",
        r"CCL|HIP version|ROCm version|Hostname +:|Librccl",
        (
            r"server_args=|max_total_num_tokens=|--model\b.*(?:sglang|launch_server)|(?:sglang|"
            r"launch_server).*--model"
        ),
        (
            r"Init torch distributed|Init parallel|Load weight|Cache is allocated|Memory "
            r"profiling|Memory pool end|Captur(?:e|ing) "
        ),
        (
            r"DeepGEMM|[Ff]lash[Ii]nfer autotune|Started server|Application (?:startup|shutdown)|"
            r"Uvicorn running|fired up and ready"
        ),
        r"Engine startup timings|% Completed|%\|",
        (
            r"Finished server|Gracefully exiting|Shutting down|SIGTERM received|kill_process_tree|"
            r"Health check failed"
        ),
        (
            r"/health|HTTP/[\d.]+\" 5|Traceback \(most recent|Exception in (?:thread|callback)|"
            r"hit an exception"
        ),
        r"(?:Error|Exception|Interrupt|Exit|Warning)(?::|\s*$|\\|\S*\[|\S+:\d+:\d+ \[)",
        (
            r"(?:[Vv]ersion|VERSION)(?:[: =]+\d|.*CUDA[: =]+\d)|CUDA[: =]+\d.*[Vv]ersion|==\d|"
            r"(?:sglang|SGLang|SGLANG)(?::| )v\d"
        ),
    )
)
"""What else than a row of the tables a message is read for."""
# Fragments that many texts share, commonest characters left out; a text without one is looked for
# by itself
_SHARED = (
    b"mry",
    b"CUDArrr:",
    b"_STATUS_",
    b"vld",
    b"udgrp",
    b"wchdg",
    b"CUD",
    b"rqu",
    b"mch",
    b"MmHdl",
    b"byrmp",
    b"rrr",
    b"fld",
    b"drvr",
    b"ubl",
    b"kll",
    b"SIMULATE",
    b"Wculd'cc",
    b"ccldbypr",
    b"lyupprpk",
    b"bld",
    b"krl",
    b"mdl",
    b"rch",
    b"JIT",
    b"KVcchp",
    b"fgflf",
    b"crbyp",
    b"Applc",
    b"pculv",
    b"Ukw",
    b"chdul",
    b"xcd",
    b"dflh",
    b"dvc",
    b"llc",
    b"=Tru",
    b"fruu",
    b"Tmdu",
    b"Tmu",
    b"xdwh",
    b"wgh",
    b"ukw",
    b"GPU",
    b"xcp",
)


@dataclass(frozen=True, slots=True)
class RequiredText:
    """A text, and the patterns that need it. `sure`: the text alone is enough, for a pattern may
    match a message and not its line.
    """

    text: bytes
    sure: bool
    words: tuple[re.Pattern[str], ...]

    def matches(self, line: bytes) -> bool:
        """Whether one of the patterns may match a message of this line."""
        if self.text not in line:
            return False
        if self.sure:
            return True
        text = line.decode("utf-8", "replace")
        return any(words.search(text) for words in self.words)


def required_texts() -> tuple[RequiredText, ...]:
    """Of all patterns that a line is read for: every match of one meets a need at least."""
    owners: dict[str, list[tuple[bool, re.Pattern[str]]]] = {}
    for words in _OTHER_PATTERNS:
        for text in required_literals(words):
            owners.setdefault(text, []).append((False, words))
    for words in (row.pattern for table in (LOG_SYMPTOMS, WARNING_PATTERNS) for row in table):
        for text in required_literals(words):
            owners.setdefault(text, []).append((not is_unanchored(words), words))
    return tuple(
        RequiredText(text.encode(), any(sure for sure, _ in own), tuple(words for _, words in own))
        for text, own in sorted(owners.items(), key=lambda pair: (len(pair[0]), pair[0]))
    )


def select_lines(lines: Sequence[bytes], shapes: Sequence[bytes]) -> set[int]:
    """Which of these lines may tell anything, by index; `shapes` are the same lines without their
    digits.
    """
    if not lines:
        return set()
    text = b"\n".join(shapes)
    if b"\x1b" in text or b"\x00" in text:
        lines, text = [_ANSI.sub(b"", line) for line in lines], _ANSI.sub(b"", text)
    if b'{"log":' in text:
        lines, text = [line.replace(b'\\"', b'"') for line in lines], text.replace(b'\\"', b'"')
    levels = zip(_REDUCTION_LEVELS, _fragments(), strict=True)
    return {
        index
        for left_out, groups in levels
        for index in _matching_lines(lines, text.translate(None, left_out), groups)
    }


_Group = tuple[bytes, tuple[RequiredText, ...]]


def _matching_lines(lines: Sequence[bytes], text: bytes, groups: Sequence[_Group]) -> Iterator[int]:
    """The lines that hold a text of a group; its fragment is looked for in all of them at once."""
    ends: list[int] = []
    for begin, end in _text_chunks(text):
        for fragment, wanted in groups:
            place = text.find(fragment, begin, end)
            while place >= 0:
                ends = ends or list(accumulate(len(row) + 1 for row in text.split(b"\n")))
                index = bisect_right(ends, place)
                if any(need.matches(lines[index]) for need in wanted):
                    yield index
                place = text.find(fragment, ends[index], end)


def _text_chunks(text: bytes) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines."""
    begin = 0
    while begin < len(text):
        end = (
            len(text)
            if len(text) - begin <= _CHUNK_BYTES
            else text.rfind(b"\n", begin, begin + _CHUNK_BYTES) + 1
        )
        end = end if end > begin else len(text)
        yield begin, end
        begin = end


@cache
def _fragments() -> tuple[tuple[_Group, ...], ...]:
    """What to look for at each level."""
    levels: list[dict[bytes, list[RequiredText]]] = [{} for _ in _REDUCTION_LEVELS]
    for need in required_texts():
        for left_out, groups in zip(_REDUCTION_LEVELS, levels, strict=True):
            fragment = need.text.translate(None, left_out)
            shared = next(
                (
                    part
                    for part in _SHARED
                    if part in fragment and part == part.translate(None, left_out)
                ),
                fragment,
            )
            if len(fragment) >= _SHORTEST or left_out == _DIGITS:
                _add_to_group(groups, shared if left_out != _DIGITS else fragment, need)
                break
    return tuple(map(_freeze_groups, levels))


def _add_to_group(
    groups: dict[bytes, list[RequiredText]], fragment: bytes, need: RequiredText
) -> None:
    """To the group whose fragment is part of this one: needs come from the shortest."""
    groups.setdefault(next((known for known in groups if known in fragment), fragment), []).append(
        need
    )


def _freeze_groups(groups: dict[bytes, list[RequiredText]]) -> tuple[_Group, ...]:
    return tuple((fragment, tuple(wanted)) for fragment, wanted in groups.items())
