"""The tokens of a shell script: words, the pieces that they consist of, and operators."""

from __future__ import annotations

from dataclasses import dataclass

TEXT, VARIABLE, ARITHMETIC, COMMAND = "text", "variable", "arithmetic", "command substitution"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: text as it stands, or what a `$` or a backtick stands for (`content`,
    without its brackets).
    """

    content: str
    kind: str = TEXT
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command; no pieces: an empty word in quotes."""

    pieces: tuple[Piece, ...]
    line: int
    items: tuple[Word, ...] | None = None  # of `NAME=(…)`: the words in the brackets

    @property
    def bare(self) -> str:
        """The text of a word without quotes and expansions, as keywords are; empty for any other."""
        plain = all(piece.kind == TEXT and not piece.quoted for piece in self.pieces)
        return "".join(piece.content for piece in self.pieces) if plain else ""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the shell, or `\\n`. `body` is the text of a here-document, whose first line
    is `body_line`.
    """

    sign: str
    line: int
    body: str = ""
    body_line: int = 0


Token = Word | Operator
