"""Text of others on a terminal and in a log: it is read, and does nothing."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest

from fleet_controller.report.table import Table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.escape import (
    EscapingFormatter,
    escape_all_but_colours,
    escape_to_one_line,
    escape_unprintable,
)

TRICKS = [
    "\x1b]0;title\x07", "\x1b[2J\x1b[H", "\x9b31m", "\x08\x08ok", "a\x00b", "\u202egpj.exe", "\u2066x", "\ufeff", "\x7f",
    "\u2028next", "\U000e0041",
]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
def test_what_moves_a_cursor_or_turns_the_text_around_is_escaped(trick: str) -> None:
    for shown in (
        escape_unprintable(trick),
        escape_all_but_colours(trick),
        escape_to_one_line(trick),
    ):
        assert not {unicodedata.category(mark) for mark in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_words_of_any_language_stay_as_they_are() -> None:
    text = "größer, 日本語, עברית, 👍🏽, 2 ± 0.1 %\n\tnext"
    assert escape_unprintable(text) == escape_all_but_colours(text) == text


def test_a_carriage_return_does_not_write_over_what_was_there() -> None:
    assert escape_unprintable("ok: done\rfailed\r\n") == "ok: done\nfailed\n"


def test_our_own_colours_pass_and_others_do_not() -> None:
    assert escape_all_but_colours("\033[1;32mok\033[0m") == "\033[1;32mok\033[0m"
    assert (
        escape_all_but_colours("\033[8mhidden\033[0m\033[41m")
        == "\\u001b[8mhidden\033[0m\\u001b[41m"
    )


def test_json_stays_json_with_the_same_content() -> None:
    value = {"message": "".join(TRICKS)}
    assert json.loads(escape_all_but_colours(json.dumps(value, ensure_ascii=False))) == value


def test_a_message_never_begins_a_line_of_its_own_in_a_log() -> None:
    try:
        raise ValueError("x\x1b[2J\n2026-01-01 INFO forged: trial ok")
    except ValueError:
        record = logging.LogRecord(
            "n",
            logging.INFO,
            "f",
            1,
            "trial %s failed",
            ("a\n2026-01-01 INFO forged: ok\x1b[2J",),
            sys.exc_info(),
        )
    first, *rest = (
        EscapingFormatter("%(levelname)s %(name)s: %(message)s").format(record).split("\n")
    )
    assert first == "INFO n: trial a\\n2026-01-01 INFO forged: ok\\u001b[2J failed"
    assert rest
    assert all(line.startswith("    ") and "\x1b" not in line for line in rest)


@pytest.mark.parametrize("width", [None, 200, 10])
def test_a_cell_stays_in_its_row(width: int | None) -> None:
    lines = table_text(
        Table(("host", "message"), (("gpu01\x1b[2J", "a\nb"),)), width, False
    ).splitlines()
    assert [line for line in lines if line.startswith("b")] == []
    assert "\x1b" not in "".join(lines)
