"""Tests that the line filter keeps every line that a pattern can match, and never changes a result."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet_knowledge.server_log import line_filter
from fleet_knowledge.server_log.diagnosis import accumulator, launch_phases, root_cause
from fleet_knowledge.server_log.line_filter import is_bulk_line, load_line_filter
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.parsing import batch_lines, server_facts
from fleet_knowledge.server_log.regex_literals import required_literals
from fleet_knowledge.server_log.symptoms import symptom_matching
from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS
from fleet_knowledge.server_log.symptoms.warning_patterns import WARNING_PATTERNS

DATA = Path(__file__).parent / "data"
LOGS = {
    case.name: str(json.loads(case.read_text())["input"]).encode()
    for case in (*sorted((DATA / "field").glob("[AB]*.json")), *sorted((DATA / "logs").iterdir()))
}
NEVER = 1_000_000_000
ROWS = [row.pattern for table in (LOG_SYMPTOMS, WARNING_PATTERNS) for row in table]
OTHERS = [
    *(marker.pattern for marker in launch_phases._MARKERS),
    batch_lines._HEAD,
    root_cause._CRASH,
    root_cause._FRAME,
    symptom_matching._RAISED,
    accumulator._STOPPED,
    server_facts._KV_TOKENS,
    server_facts._WEIGHTS,
]


def kept(line: bytes) -> bool:
    loaded = load_line_filter()
    assert loaded
    return bool(loaded.select(b"nothing\n" + line + b"\nnothing")[1]) or is_bulk_line(line)


def diagnosis(log: bytes, filter_from: int) -> str:
    reader = LogReader(_filter_from=filter_from)
    reader.feed(log)
    return json.dumps(reader.finish().to_json())


@pytest.mark.parametrize("pattern", [*ROWS, *OTHERS], ids=lambda pattern: pattern.pattern[:40])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_line_with_a_message_that_a_pattern_matches_is_kept(
    pattern: re.Pattern[str], data: st.DataObject
) -> None:
    assert required_literals(pattern)
    message = data.draw(st.from_regex(pattern)).translate(
        dict.fromkeys(map(ord, "\n\r\x1b\x00"), " ")
    )
    if pattern.search(message):
        wrapped = json.dumps({"log": f"[2026-04-20 11:00:00 TP0] {message}"})
        assert kept(message.encode())
        assert kept(wrapped.encode()) or "\\u" in wrapped


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_is_filtered_from_its_second_line_gives_the_same_result(name: str) -> None:
    assert diagnosis(LOGS[name], 1) == diagnosis(LOGS[name], NEVER)


def test_a_text_is_found_wherever_it_stands_in_a_line() -> None:
    for length in range(0, 300, 7):
        line = b"x" * length + b"Xid (PCI:0000:0f:00): 119, GPU requires reset" + b"y" * length
        assert kept(line)


def test_a_failure_among_lines_that_are_all_unlike_is_found() -> None:
    letters = str.maketrans("0123456789", "abcdefghij")
    lines = [
        f"[2026-04-20 11:00:00 TP0] nothing {str(number).translate(letters)}"
        for number in range(9000)
    ]
    lines.insert(
        7000, "\x1b[31m[2026-04-20 11:00:00 TP0] RuntimeError: No CUDA\x1b[0m GPUs are available"
    )
    reader = LogReader()
    reader.feed("\n".join(lines).encode())
    assert reader._filter
    assert reader.finish().failure_class == "no_gpu"


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from(b"\n".join(LOGS.values()).split(b"\n")), max_size=60),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    filter_from=st.integers(1, 30),
)
@example(lines=[b"A", b"[2026-04-20 11:00:00 TP1] B"], sizes=[1], filter_from=1)
def test_the_size_of_the_chunks_does_not_change_what_is_filtered(
    lines: list[bytes], sizes: list[int], filter_from: int
) -> None:
    log = b"\n".join(lines)
    reader, offset = LogReader(_filter_from=filter_from), 0
    while offset < len(log):
        for size in sizes:
            reader.feed(log[offset : offset + size])
            offset += size
    assert json.dumps(reader.finish().to_json()) == diagnosis(log, filter_from)


@pytest.fixture
def _without_hyperscan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    line_filter._compiled_database.cache_clear()
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    yield
    line_filter._compiled_database.cache_clear()


@pytest.mark.usefixtures("_without_hyperscan")
def test_without_hyperscan_all_lines_are_read() -> None:
    assert load_line_filter() is None
    log = b"\n".join(LOGS.values())
    assert diagnosis(log, 1) == diagnosis(log, NEVER)


def test_hyperscan_is_imported_only_for_a_log_with_many_shapes() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "hyperscan"]:
        del sys.modules[name]
    line_filter._compiled_database.cache_clear()
    diagnosis(b"\n".join(LOGS.values()), NEVER)
    assert "hyperscan" not in sys.modules
    diagnosis(b"A\nB\n", 1)
    assert importlib.util.find_spec("hyperscan") is None or "hyperscan" in sys.modules
