"""The tokens of a shell script: words, the pieces that they consist of, and operators."""

from __future__ import annotations

from dataclasses import dataclass

TEXT, VARIABLE, ARITHMETIC, COMMAND = "text", "variable", "arithmetic", "command substitution"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: literal text or an expansion. For an expansion, `content` is what follows
    the `$` or the backtick, without its brackets.
    """

    content: str
    kind: str = TEXT
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command. A word without pieces is an empty word in quotes."""

    pieces: tuple[Piece, ...]
    line: int
    items: tuple[Word, ...] | None = None  # of `NAME=(…)`: the words in the brackets

    @property
    def bare(self) -> str:
        """The text of a word without quotes and expansions, such as a keyword. It is empty for any
        other word.
        """
        plain = all(piece.kind == TEXT and not piece.quoted for piece in self.pieces)
        return "".join(piece.content for piece in self.pieces) if plain else ""


@dataclass(frozen=True, slots=True)
class Operator:
    r"""An operator of the shell, or `\n`. `body` is the text of a here-document that begins in line
    `body_line`.
    """

    sign: str
    line: int
    body: str = ""
    body_line: int = 0


Token = Word | Operator
