"""Parses shell tokens into simple commands with their blocks, functions and redirections."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fleet_controller.importers.shell.tokens import Operator, Piece, Token, Word
from fleet_controller.yaml.finding_collector import FindingCollector

_OPENS = {
    "if": "fi",
    "while": "done",
    "until": "done",
    "for": "done",
    "select": "done",
    "case": "esac",
}
_CLOSES = frozenset(_OPENS.values())
_STARTS_BODY = frozenset({"then", "do", "else"})
_REDIRECTIONS = frozenset({"<", ">", ">>", ">|", "&>", "&>>", ">&", "<&", "<<", "<<-", "<<<"})
_FUNCTION = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Redirection:
    """One redirection of a command's input or output. `body` is the text of a here-document."""

    sign: str
    line: int
    body: str = ""
    body_line: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command as written. `within` lists the kinds of the blocks around it (`if`, `for`,
    …), outermost first.
    """

    words: tuple[Word, ...]
    line: int
    redirections: tuple[Redirection, ...] = ()
    end: str = "\n"  # the operator after it
    before: str = "\n"  # the operator before it
    within: tuple[str, ...] = ()
    is_condition: bool = False
    function: str = ""
    loop: bool = False  # the head of a `for`: words are its name and its values


@dataclass(slots=True)
class _Open:
    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    line: int = 0


def parse_commands(tokens: Sequence[Token], notes: FindingCollector) -> list[Command]:
    """Return all simple commands in file order, including those in blocks and functions."""
    return _Parser(tokens, notes).read()


class _Parser:
    def __init__(self, tokens: Sequence[Token], notes: FindingCollector) -> None:
        self._tokens = tokens
        self._notes = notes
        self._at = 0
        self._commands: list[Command] = []
        self._blocks: list[tuple[str, int]] = []  # kind, line
        self._braces: list[str] = []  # for each open `{`: the function whose body it is, or ""
        self._awaits_body = ""  # the name of a function whose `{` is still expected
        self._is_condition = False
        self._before = "\n"
        self._open = _Open()

    def read(self) -> list[Command]:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if isinstance(token, Operator):
                self._operator(token)
            elif not self._open.words and self._keyword(token):
                continue
            else:
                self._word(token)
        self._end("\n")
        for kind, line in self._blocks:
            closing = _OPENS[kind]
            message = f"the `{kind}` of line {line} is never closed with `{closing}`"
            self._notes.warn("block_open", line, message, "check whether the end was cut off")
        return self._commands

    def _operator(self, token: Operator) -> None:
        if token.sign in _REDIRECTIONS:
            self._redirection(token)
        elif token.sign == "(" and self._is_function_head():
            self._awaits_body = self._open.words.pop().bare
            self._open = _Open()
        elif token.sign == ";;":
            self._end(";")
            self._skip_pattern()
        else:
            self._end(token.sign)

    def _is_function_head(self) -> bool:
        following = self._tokens[self._at : self._at + 1]
        closes = bool(following) and isinstance(following[0], Operator) and following[0].sign == ")"
        if (
            not closes
            or len(self._open.words) != 1
            or not _FUNCTION.fullmatch(self._open.words[0].bare)
        ):
            return False
        self._at += 1
        return True

    def _redirection(self, token: Operator) -> None:
        if (
            token.sign not in ("<<", "<<-")
            and self._at < len(self._tokens)
            and isinstance(self._tokens[self._at], Word)
        ):
            self._at += 1
        self._open.redirections.append(
            Redirection(token.sign, token.line, token.body, token.body_line)
        )

    def _keyword(self, word: Word) -> bool:
        """Handle a reserved word at the start of a command. Return False for any other word."""
        bare = word.bare
        if bare in ("{", "}"):
            self._brace(bare)
        elif bare in ("!", "time"):
            return True
        elif bare == "function":
            self._function_keyword()
        elif bare in _OPENS:
            self._open_block(bare, word.line)
        elif bare in _STARTS_BODY or bare == "elif":
            self._is_condition = bare == "elif"
        elif bare in _CLOSES:
            self._close_block(bare)
        else:
            return False
        return True

    def _brace(self, bare: str) -> None:
        if bare == "{":
            self._braces.append(self._awaits_body)
            self._awaits_body = ""
        elif self._braces:
            self._end(";")
            self._braces.pop()

    def _function_keyword(self) -> None:
        if self._at < len(self._tokens) and isinstance(name := self._tokens[self._at], Word):
            self._at += 1
            self._awaits_body = name.bare
            while (
                self._at < len(self._tokens)
                and isinstance(sign := self._tokens[self._at], Operator)
                and sign.sign in ("(", ")")
            ):
                self._at += 1

    def _open_block(self, kind: str, line: int) -> None:
        self._blocks.append((kind, line))
        if kind in ("for", "select"):
            self._loop_head(line)
        elif kind == "case":
            while (
                self._at < len(self._tokens)
                and isinstance(word := self._tokens[self._at], Word)
                and word.bare != "in"
            ):
                self._at += 1
            self._at += 1
            self._skip_pattern()
        else:
            self._is_condition = True

    def _loop_head(self, line: int) -> None:
        words = []
        while (
            self._at < len(self._tokens)
            and isinstance(word := self._tokens[self._at], Word)
            and word.bare != "do"
        ):
            words.append(word)
            self._at += 1
        head = [word for word in words if word.bare != "in"]
        if head:
            self._commands.append(replace(self._command(tuple(head), line), loop=True))

    def _skip_pattern(self) -> None:
        """Skip the pattern of a branch of `case`, up to its `)`."""
        start = self._at
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if isinstance(token, Word) and token.bare == "esac":
                return
            self._at += 1
            if isinstance(token, Operator) and token.sign == ")":
                return
        self._at = start

    def _close_block(self, closer: str) -> None:
        self._is_condition = False
        for place in range(len(self._blocks) - 1, -1, -1):
            if _OPENS[self._blocks[place][0]] == closer:
                del self._blocks[place:]
                return

    def _word(self, word: Word) -> None:
        if word.pieces and word.pieces[-1] == Piece("("):
            word = self._array(word)
        self._open.words.append(word)
        self._open.line = self._open.line or word.line

    def _array(self, word: Word) -> Word:
        items = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if isinstance(token, Word):
                items.append(token)
            elif token.sign == ")":
                break
        else:
            self._notes.error(
                "unclosed_quote",
                word.line,
                f"the list that starts in line {word.line} has no `)`",
                "close it",
            )
        return Word(word.pieces[:-1], word.line, tuple(items))

    def _end(self, sign: str) -> None:
        opened, self._open = self._open, _Open()
        if opened.words or opened.redirections:
            command = self._command(tuple(opened.words), opened.line or opened.redirections[0].line)
            self._commands.append(
                replace(command, redirections=tuple(opened.redirections), end=sign)
            )
        self._before = sign

    def _command(self, words: tuple[Word, ...], line: int) -> Command:
        return Command(
            words,
            line,
            before=self._before,
            within=tuple(kind for kind, _ in self._blocks),
            is_condition=self._is_condition,
            function=next((name for name in self._braces if name), ""),
        )
