"""Reads a server's options: `--flag=value`, `--flag value`, flags and lists, with names and types
as in the job file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.launch_values import ServerOption
from fleet_controller.yaml.finding_collector import FindingCollector
from fleet_knowledge.release import Release
from fleet_knowledge.sglang.server_arguments import is_negatable, known_arguments, resolve_name

FLAG, MANY, ONE, UNKNOWN = "flag", "many", "one", ""
NO_VALUE = "no value"  # of an option that needs one and has none
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,15})")
_DECIMAL = re.compile(r"-?\d+\.\d+|-?\d(?:\.\d+)?e[-+]?\d{1,2}", re.IGNORECASE)
_NUMBER = re.compile(r"-?[\d.]+(?:[eE][-+]?\d+)?")
_TEXT_OPTIONS = re.compile(
    r".*(?:_path|_name|_addr|_key|_template|_parser|_id|_dir|_folder)|revision|host|quantization|dtype"
)


def option_kind(name: str) -> str:
    """Return how many values the option takes: flag, many or one. An empty text means that this is
    not known.
    """
    known = known_arguments().get(name)
    if known is None:
        return FLAG if name.startswith("disable_") else UNKNOWN
    return {"f": FLAG, "n": FLAG, "v": ONE, "m": MANY}.get(known.kind, UNKNOWN)


def read_options(
    words: Sequence[SourceText], notes: FindingCollector, release: Release | None = None
) -> tuple[dict[str, ServerOption], tuple[SourceText, ...]]:
    """Return the options under SGLang's names in that release, and the words that may contain more
    options. The last occurrence of an option counts. Never raises.
    """
    found: dict[str, ServerOption] = {}
    loose: list[SourceText] = []
    at = 0
    while at < len(words):
        word = words[at]
        if not _is_option(word):
            _report_stray(word, loose, found, notes)
            at += 1
            continue
        following = _following(words, at + 1)
        option, taken = _option(word, following, notes, release)
        _keep_last(option, found, notes)
        at += 1 + taken
    return found, tuple(loose)


def _is_option(word: SourceText) -> bool:
    return word.text.startswith("-") and len(word.text) > 1 and not _NUMBER.fullmatch(word.text)


def _following(words: Sequence[SourceText], start: int) -> Sequence[SourceText]:
    end = start
    while end < len(words) and not _is_option(words[end]):
        end += 1
    return words[start:end]


def _option(
    word: SourceText,
    following: Sequence[SourceText],
    notes: FindingCollector,
    release: Release | None,
) -> tuple[ServerOption, int]:
    """Return the option that `word` begins, and how many of the following words are its values."""
    written, equals, value = word.text.partition("=")
    name = _resolve_option(written, word, notes, release)
    if name.startswith("no_") and is_negatable(name.removeprefix("no_")) and not equals:
        return ServerOption(name.removeprefix("no_"), False, word.line, written), 0
    kind = option_kind(name)
    if equals:
        source = SourceText(value, word.line, word.unknown, word.unevaluated)
        return _with_value(name, [source], kind, written, notes), 0
    taken = _count_values(kind, following)
    if not taken:
        if kind in (ONE, MANY):
            return ServerOption(
                name, "", word.line, written, SourceText("", word.line, (), (NO_VALUE,))
            ), 0
        return ServerOption(name, True, word.line, written, word if not word.is_known else None), 0
    return _with_value(name, list(following[:taken]), kind, written, notes, word.line), taken


def _count_values(kind: str, following: Sequence[SourceText]) -> int:
    if kind == FLAG:
        return 0
    if kind == MANY:
        closed = next(
            (place for place, word in enumerate(following) if word.is_open and place),
            len(following),
        )
        return closed
    if kind == ONE:
        return min(1, len(following))
    opened = next((place for place, word in enumerate(following) if word.is_open), len(following))
    return opened


def _resolve_option(
    written: str, word: SourceText, notes: FindingCollector, release: Release | None
) -> str:
    short = {"-tp": "tp_size", "-dp": "dp_size", "-pp": "pp_size", "-ep": "ep_size"}
    if not written.startswith("--"):
        message = f"`{written[:60]}` is not an option of SGLang: options start with `--`"
        notes.warn("unknown_argument", word.line, message, f"write `-{written[:60]}`")
    if "_" in written and written.startswith("--"):
        message = f"`{written[:60]}` is spelled with `_`, but SGLang's command line needs `-`"
        notes.warn(
            "argument_spelling",
            word.line,
            message,
            "the job file takes both spellings; SGLang would refuse the pasted command",
        )
    return short.get(written) or resolve_name(written, release).name


def _with_value(
    name: str,
    values: list[SourceText],
    kind: str,
    written: str,
    notes: FindingCollector,
    line: int = 0,
) -> ServerOption:
    joined = _join_values(values)
    at = line or joined.line
    if kind == FLAG and joined.is_known:
        return _flag_with_value(name, joined, written, at, notes)
    if kind == MANY or (kind == UNKNOWN and len(values) > 1):
        typed: Any = [_typed_value(name, value.text) for value in values]
    else:
        typed = _typed_value(name, joined.text) if joined.is_known else joined.text
        _check_json(name, joined, at, notes)
    return ServerOption(name, typed, at, written, joined)


def _flag_with_value(
    name: str, value: SourceText, written: str, line: int, notes: FindingCollector
) -> ServerOption:
    means = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
        value.text.lower(), True
    )
    shown, state = value.text[:40], "given" if means else "not given"
    message = f"`{written}` takes no value: SGLang refuses `{written}={shown}`"
    notes.warn(
        "flag_with_value",
        line,
        message,
        f"the flag is read as {state}",
        f"args.{name}",
    )
    return ServerOption(name, means, line, written)


def _join_values(values: Sequence[SourceText]) -> SourceText:
    unknown = dict.fromkeys(name for value in values for name in value.unknown)
    unevaluated = dict.fromkeys(kind for value in values for kind in value.unevaluated)
    return SourceText(
        " ".join(value.text for value in values), values[0].line, tuple(unknown), tuple(unevaluated)
    )


def _typed_value(name: str, text: str) -> Any:
    """Return the value as a number if its text is a plain number and the option takes no text.
    Return any other value as text.
    """
    if _TEXT_OPTIONS.fullmatch(name):
        return text
    if _WHOLE.fullmatch(text) and abs(int(text)) < 1 << 53:
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _check_json(name: str, value: SourceText, line: int, notes: FindingCollector) -> None:
    looks_like_json = value.text.lstrip().startswith(("{", "[{")) and (
        "json" in name or "config" in name or ":" in value.text
    )
    if not value.is_known or not looks_like_json:
        return
    try:
        json.loads(value.text)
    except (ValueError, RecursionError):
        message = f"the value of {name} looks like JSON but is not valid: `{value.text[:60]}`"
        notes.warn(
            "bad_json",
            line,
            message,
            "put the whole value in single quotes: the shell removes double quotes",
            f"args.{name}",
        )


def _report_stray(
    word: SourceText,
    loose: list[SourceText],
    found: dict[str, ServerOption],
    notes: FindingCollector,
) -> None:
    if word.is_open or not word.is_known:
        loose.append(word)
        return
    if word.text == "" or word.text.isspace():
        notes.warn(
            "stray_word",
            word.line,
            "there is an empty argument among the options",
            "remove it, because SGLang refuses an empty argument",
        )
        return
    behind = f" after {found[next(reversed(found))].spelling}" if found else ""
    message = f"`{word.text[:60]}`{behind} does not belong to an option: SGLang refuses it"
    notes.warn(
        "stray_word",
        word.line,
        message,
        "the word is left out: remove it, or add the option that it belongs to",
    )


def _keep_last(
    option: ServerOption, found: dict[str, ServerOption], notes: FindingCollector
) -> None:
    before = found.pop(option.name, None)
    if before is not None and before.value != option.value:
        message = (
            f"{option.name} is given twice ({_shorten(before.value)}, "
            f"{_shorten(option.value)}): the last value wins"
        )
        notes.warn(
            "last_wins",
            option.line,
            message,
            f"the option is also in line {before.line}: keep one of the two",
            f"args.{option.name}",
        )
    elif before is not None:
        notes.info(
            "last_wins",
            option.line,
            f"{option.name} is given twice with the same value",
            "",
            f"args.{option.name}",
        )
    found[option.name] = option


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
