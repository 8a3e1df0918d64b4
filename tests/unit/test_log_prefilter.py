"""Owns the promises of the sieve: every row of the tables implies one of its texts, and a log
sieved from its first line reads alike.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_knowledge.server_log.diagnosis import launch_phases, root_cause
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.parsing import batch_lines, server_facts
from fleet_knowledge.server_log.symptoms.prefilter import required_texts, select_lines
from fleet_knowledge.server_log.symptoms.regex_literals import required_literals
from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS
from fleet_knowledge.server_log.symptoms.warning_patterns import WARNING_PATTERNS

FOLDER = Path(__file__).parent / "data" / "field"
CASES = sorted(FOLDER.glob("[AB]*.json"))
WORDS = [row.pattern for table in (LOG_SYMPTOMS, WARNING_PATTERNS) for row in table]
OTHERS = [
    *(marker.pattern for marker in launch_phases._MARKERS),
    batch_lines._HEAD,
    root_cause._CRASH,
    server_facts._KV_TOKENS,
    server_facts._WEIGHTS,
]
DIGITS = str.maketrans("", "", "0123456789")


def sieved(line: str) -> bool:
    return select_lines([line.encode()], [line.translate(DIGITS).encode()]) == {0}


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.pattern[:40])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_a_row_matches_passes_the_sieve(
    words: re.Pattern[str], data: st.DataObject
) -> None:
    assert required_literals(words)
    pattern = re.compile(words.pattern, re.ASCII | words.flags & re.IGNORECASE)
    message = data.draw(st.from_regex(pattern)).translate(
        dict.fromkeys(map(ord, "\n\x1b\x00"), " ")
    )
    if words.search(message):
        assert sieved(message)


def test_what_else_is_read_holds_a_text_of_the_sieve() -> None:
    texts = [need.text.decode() for need in required_texts()]
    missed = [
        text
        for words in OTHERS
        for text in required_literals(words)
        if not any(known in text for known in texts)
    ]
    assert missed == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_log_sieved_from_its_first_line_comes_to_the_same(case: Path) -> None:
    told = []
    for sieved_from in (0, 1_000_000):
        reader = LogReader(_prefilter_from=sieved_from)
        reader.feed(str(json.loads(case.read_text())["input"]).encode())
        told.append(reader.finish().to_json())
    assert told[0] == told[1]


def test_a_failure_among_lines_that_are_all_unlike_is_found() -> None:
    reader = LogReader(_prefilter_from=0)
    letters = str.maketrans("0123456789", "abcdefghij")
    lines = [
        f"[2026-04-20 11:00:00 TP0] nothing {str(number).translate(letters)}"
        for number in range(3000)
    ]
    lines.insert(2000, "[2026-04-20 11:00:00 TP0] RuntimeError: No CUDA GPUs are available")
    reader.feed("\n".join(lines).encode())
    assert reader.finish().failure_class == "no_gpu"
