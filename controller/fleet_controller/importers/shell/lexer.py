"""Splits shell text into words and operators with their lines, by POSIX's quoting rules."""

from __future__ import annotations

import re

from fleet_controller.importers.shell.tokens import (
    ARITHMETIC,
    COMMAND,
    TEXT,
    VARIABLE,
    Operator,
    Piece,
    Token,
    Word,
)
from fleet_controller.yaml.finding_collector import FindingCollector

LARGEST_CHARS = 1 << 18
_MOST_TOKENS = 100_000
_OPERATOR = re.compile(r"&>>|<<<|<<-|&>|&&|\|\||;;|>>|<<|>&|<&|>\||\|&|[;&|<>()]")  # longest first
_BLANKS = " \t"
_ENDS_WORD = " \t\n;&|<>()"
_PLAIN = re.compile(r"[^ \t\n;&|<>()'\"\\$`]+")
_ESCAPED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "0": "",
    "a": "",
    "b": "",
    "e": "",
}
_TYPOGRAPHIC = {
    "“": '"',
    "”": '"',
    "„": '"',
    "\u2018": "'",
    "\u2019": "'",
    "–": "--",
    "—": "--",
    "\u00a0": "a blank",
}


def tokenize(text: str, notes: FindingCollector, first_line: int = 1) -> list[Token]:
    """Return all tokens of `text`. Never raises. A problem is reported with its line, and the text
    after it is read as its author probably meant it.
    """
    return _Lexer(text, notes, first_line).read()


class _Lexer:
    def __init__(self, text: str, notes: FindingCollector, first_line: int) -> None:
        self._text = text
        self._notes = notes
        self._at = 0
        self._line = first_line
        self._tokens: list[Token] = []
        self._waiting: list[
            tuple[int, str, bool]
        ] = []  # here-documents: index of their operator, delimiter, tabs are stripped

    def read(self) -> list[Token]:
        while self._at < len(self._text) and len(self._tokens) < _MOST_TOKENS:
            self._step()
        self._finish_here_documents()
        return self._tokens

    def _step(self) -> None:
        char = self._text[self._at]
        if char in _BLANKS:
            self._at += 1
        elif char == "\n":
            self._newline()
        elif char == "#":
            self._skip_comment()
        elif self._continues():
            pass
        else:
            self._operator_or_word()

    def _newline(self) -> None:
        self._tokens.append(Operator("\n", self._line))
        self._at += 1
        self._line += 1
        self._finish_here_documents()

    def _skip_comment(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _continues(self) -> bool:
        """Consume a backslash at the start of a word if it is meant to continue the line. Report a
        backslash that is not the last character of its line. Return True if one was consumed.
        """
        if self._text[self._at] != "\\":
            return False
        rest_end = self._text.find("\n", self._at)
        rest_end = len(self._text) if rest_end < 0 else rest_end
        rest = self._text[self._at + 1 : rest_end]
        if rest == "":
            self._end_line_after_backslash(rest_end)
            return True
        if rest[0] not in (*_BLANKS, "#"):
            return False
        self._report_broken(rest.strip())
        if not rest.strip() or rest.strip().startswith("#"):
            self._end_line_after_backslash(rest_end)
        else:
            self._at += 1
        return True

    def _end_line_after_backslash(self, end: int) -> None:
        """Continue in the next line, whatever comes after the backslash, because its author meant
        that.
        """
        if end >= len(self._text):
            message = f"line {self._line} ends with `\\`, and nothing follows"
            hint = "paste the rest of the command too, or remove the `\\`"
            self._notes.warn("trailing_backslash", self._line, message, hint)
        self._at = min(end + 1, len(self._text))
        self._line += 1

    def _report_broken(self, rest: str) -> None:
        line, following = self._line, self._next_line_text()
        split = f", `{following}` would be a separate command" if following else ""
        if not rest:
            message = f"blanks follow the `\\` in line {line}: the command ends there{split}"
            hint = "remove the blanks: `\\` must be the last character of the line"
        elif rest.startswith("#"):
            message = f"a comment follows the `\\` in line {line}: the command ends there{split}"
            hint = "remove the comment: `\\` must be the last character of the line"
        else:
            message = (
                f"text follows the `\\` in line {line}: the `\\` does not continue the line, but "
                "makes the blank part of the next word"
            )
            hint = "remove the `\\`, or start a new line after it"
        self._notes.error("text_after_continuation", line, message, hint)

    def _next_line_text(self) -> str:
        start = self._text.find("\n", self._at)
        if start < 0:
            return ""
        line = self._text[start + 1 :].split("\n", 1)[0].strip().rstrip("\\").strip()
        return line if len(line) <= 60 else f"{line[:57]}…"

    def _operator_or_word(self) -> None:
        found = _OPERATOR.match(self._text, self._at)
        if found is None:
            self._word()
            return
        sign = found[0]
        if sign in ("<", ">") and self._text.startswith("(", self._at + 1):  # process substitution
            self._at += 2
            self._tokens.append(Word((Piece(self._until_closed(")"), COMMAND),), self._line))
            return
        self._at += len(sign)
        self._tokens.append(Operator(sign, self._line))
        if sign in ("<<", "<<-"):
            self._await_here_document(sign == "<<-")

    def _await_here_document(self, strip_tabs: bool) -> None:
        place = len(self._tokens) - 1
        while self._at < len(self._text) and self._text[self._at] in _BLANKS:
            self._at += 1
        start = len(self._tokens)
        if self._at < len(self._text) and self._text[self._at] not in _ENDS_WORD:
            self._word()
        if len(self._tokens) > start and isinstance(word := self._tokens.pop(), Word):
            delimiter = "".join(piece.content for piece in word.pieces)
            self._waiting.append((place, delimiter, strip_tabs))

    def _finish_here_documents(self) -> None:
        waiting, self._waiting = self._waiting, []
        for place, delimiter, strip_tabs in waiting:
            first, lines = self._line, []
            closed = False
            while self._at < len(self._text) and not closed:
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at, self._line = min(end + 1, len(self._text)), self._line + 1
                line = line.lstrip("\t") if strip_tabs else line
                closed = line == delimiter
                lines.extend([] if closed else [line])
            opened = self._tokens[place]
            if not closed:
                message = (
                    f"the text after `<< {delimiter[:40]}` has no line `{delimiter[:40]}` that "
                    "ends it"
                )
                self._notes.warn("here_document_open", opened.line, message)
            self._tokens[place] = Operator("<<", opened.line, "\n".join(lines), first)

    def _word(self) -> None:
        line, pieces = self._line, list[Piece]()
        while self._at < len(self._text) and self._text[self._at] not in _ENDS_WORD:
            self._piece(pieces)
            if self._text[self._at : self._at + 1] == "(" and self._begins_array(pieces):
                self._at += 1
                pieces.append(Piece("(", TEXT))
                break
        kept = tuple(piece for piece in pieces if piece.content or piece.kind != TEXT) or tuple(
            pieces[:1]
        )
        word = self._as_typed(Word(kept, line))
        is_descriptor = word.bare.isdigit() and self._text[self._at : self._at + 1] in (
            "<",
            ">",
        )  # the 2 of `2>&1`
        if word.pieces and not is_descriptor:
            self._tokens.append(word)

    def _begins_array(self, pieces: list[Piece]) -> bool:
        text = "".join(piece.content for piece in pieces)
        return all(piece.kind == TEXT and not piece.quoted for piece in pieces) and text.endswith(
            "="
        )

    def _as_typed(self, word: Word) -> Word:
        """Return the word with the dashes that its author typed, and report characters that a word
        processor changed.
        """
        text = "".join(
            piece.content for piece in word.pieces if piece.kind == TEXT and not piece.quoted
        )
        wrong = next((char for char in text if char in _TYPOGRAPHIC), "")
        if wrong and (wrong not in "–—" or text[0] in "–—"):
            name = "a no-break space" if wrong == "\u00a0" else f"`{wrong}`"
            message = (
                f"{name} in `{text[:40]}` comes from a word processor: a shell reads it as a letter"
            )
            self._notes.error("typographic", word.line, message, f"write {_TYPOGRAPHIC[wrong]}")
            if wrong in "–—":
                first = word.pieces[0]
                return Word(
                    (Piece(f"--{first.content.lstrip('–—')}", first.kind), *word.pieces[1:]),
                    word.line,
                )
        return word

    def _piece(self, pieces: list[Piece]) -> None:
        char = self._text[self._at]
        if char == "'":
            pieces.append(Piece(self._single(), TEXT, True))
        elif char == '"':
            self._double(pieces)
        elif char == "\\":
            self._escape(pieces)
        elif char == "$" and self._text[self._at + 1 : self._at + 2] in ("'", '"'):
            self._at += 1
            pieces.append(Piece(self._dollar_single(), TEXT, True)) if self._text[
                self._at
            ] == "'" else self._double(pieces)
        elif char in "$`":
            pieces.append(self._expansion(False))
        else:
            plain = _PLAIN.match(self._text, self._at)
            pieces.append(Piece(plain[0] if plain else char))
            self._at += len(pieces[-1].content)

    def _escape(self, pieces: list[Piece]) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            self._line += 1
            if self._at >= len(self._text):
                self._notes.warn(
                    "trailing_backslash",
                    self._line - 1,
                    f"line {self._line - 1} ends with `\\`, and nothing follows",
                )
        elif following:
            pieces.append(Piece(following, TEXT, True))

    def _single(self) -> str:
        end = self._text.find("'", self._at + 1)
        content = self._text[self._at + 1 :] if end < 0 else self._text[self._at + 1 : end]
        if end < 0:
            self._report_unclosed("'", self._line)
        self._line += content.count("\n")
        self._at = len(self._text) if end < 0 else end + 1
        return content

    def _dollar_single(self) -> str:
        self._at += 1
        start_line, content = self._line, ""
        while self._at < len(self._text) and self._text[self._at] != "'":
            char = self._text[self._at]
            if char == "\\" and self._at + 1 < len(self._text):
                self._at += 1
                char = _ESCAPED.get(self._text[self._at], "\\" + self._text[self._at])
            self._line += self._text[self._at] == "\n"
            content += char
            self._at += 1
        if self._at >= len(self._text):
            self._report_unclosed("$'", start_line)
        self._at += 1
        return content

    def _double(self, pieces: list[Piece]) -> None:
        start_line, text = self._line, ""
        self._at += 1
        pieces.append(Piece("", TEXT, True))
        while self._at < len(self._text) and (char := self._text[self._at]) != '"':
            following = self._text[self._at + 1 : self._at + 2]
            if char == "\\" and following and following in '$`"\\\n':
                self._at += 2
                self._line += following == "\n"
                text += following if following != "\n" else ""
            elif char in "$`":
                pieces.append(Piece(text, TEXT, True))
                text = ""
                pieces.append(self._expansion(True))
            else:
                self._line += char == "\n"
                text += char
                self._at += 1
        pieces.append(Piece(text, TEXT, True))
        if self._at >= len(self._text):
            self._report_unclosed('"', start_line)
        self._at += 1

    def _report_unclosed(self, quote: str, line: int) -> None:
        message = (
            f"the quote {quote} of line {line} is never closed: all that follows belongs to it"
        )
        self._notes.error("unclosed_quote", line, message, "close the quote, or remove it")

    def _expansion(self, quoted: bool) -> Piece:
        text, start = self._text, self._at
        if text[start] == "`":
            self._at += 1
            return Piece(self._until_closed("`"), COMMAND, quoted)
        if text.startswith("$((", start):
            self._at += 3
            content = self._until_closed("))")
            return Piece(content, ARITHMETIC, quoted)
        if text.startswith("$(", start) or text.startswith("${", start):
            kind, close = (COMMAND, ")") if text[start + 1] == "(" else (VARIABLE, "}")
            self._at += 2
            return Piece(self._until_closed(close), kind, quoted)
        end = start + 1
        while end < len(text) and text[end].isascii() and (text[end].isalnum() or text[end] == "_"):
            end += 1
            if text[start + 1].isdigit():
                break
        if end == start + 1 and text[end : end + 1] and text[end] in "@*#?$!-":
            end += 1
        self._at = end
        return (
            Piece(text[start + 1 : end], VARIABLE, quoted)
            if end > start + 1
            else Piece("$", TEXT, quoted)
        )

    def _until_closed(self, close: str) -> str:
        """Return the text up to the bracket that closes an expansion, with nested brackets and
        quotes balanced.
        """
        start, depth, first_line = self._at, 0, self._line
        opening = {")": "(", "))": "(", "}": "{"}.get(close, "")
        while self._at < len(self._text):
            char = self._text[self._at]
            if depth == 0 and self._text.startswith(close, self._at):
                content = self._text[start : self._at]
                self._at += len(close)
                return content
            depth += (char == opening and bool(opening)) - (
                bool(opening) and char == close[0] and depth > 0
            )
            self._skip_inside(char, close)
        message = f"`{close}` is missing: what starts in line {first_line} is never closed"
        self._notes.error("unclosed_quote", first_line, message, "close it")
        return self._text[start:]

    def _skip_inside(self, char: str, close: str) -> None:
        """Skip one character, or a whole quoted text, inside an expansion."""
        self._line += char == "\n"
        self._at += 1
        if char == "\\":
            self._line += self._text[self._at : self._at + 1] == "\n"
            self._at += 1
        elif char in "'\"" and close != "}":
            end = self._text.find(char, self._at)
            if end >= 0:
                self._line += self._text.count("\n", self._at, end)
                self._at = end + 1
