"""Finds command lines that lost the `\\` at their end, and joins them with the rest of their
command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet_controller.importers.shell.tokens import Operator, Piece, Token, Word
from fleet_controller.yaml.finding_collector import FindingCollector


def join_lost_lines(tokens: Sequence[Token], notes: FindingCollector) -> list[Token]:
    """Join a line that starts with an option to the command above it. The `\\` between the two was
    lost, or a comment is between them.
    """
    kept: list[Token] = []
    in_array = False
    for place, token in enumerate(tokens):
        if isinstance(token, Word):
            if not in_array and _is_lost_option(tokens, place) and _ends_a_line(kept):
                _report_lost_line(token, kept, notes)
                while isinstance(kept[-1], Operator):
                    kept.pop()
            in_array = in_array or token.pieces[-1:] == (Piece("("),)
        elif token.sign == ")":
            in_array = False
        kept.append(token)
    return kept


def _is_lost_option(tokens: Sequence[Token], place: int) -> bool:
    word, following = tokens[place], tokens[place + 1 : place + 2]
    is_pattern = (
        bool(following) and isinstance(following[0], Operator) and following[0].sign in (")", "|")
    )
    return isinstance(word, Word) and bool(re.match(r"--?[A-Za-z]", word.bare)) and not is_pattern


def _ends_a_line(kept: Sequence[Token]) -> bool:
    ended = next(
        (place for place in range(len(kept) - 1, -1, -1) if not _is_newline(kept[place])), -1
    )
    return 0 <= ended < len(kept) - 1 and isinstance(kept[ended], Word)


def _is_newline(token: Token) -> bool:
    return isinstance(token, Operator) and token.sign == "\n"


def _report_lost_line(word: Word, kept: Sequence[Token], notes: FindingCollector) -> None:
    last = next(token.line for token in reversed(kept) if isinstance(token, Word))
    line, option = word.line, word.bare[:40]
    message = (
        f"line {line} starts with `{option}`, but the command ends in line {last}: line {line} "
        "would be a separate command"
    )
    hint = (
        f"end line {last} with `\\`, and remove comments and empty lines between line {last} and "
        f"line {line}"
    )
    notes.error("continuation_missing", word.line, message, hint)
