"""Translates validation errors of pydantic into findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet_controller.yaml.document import Document
from fleet_controller.yaml.file_format import FileFormat, FindingText, model_keys
from fleet_controller.yaml.findings import ERROR, INFO, Finding
from fleet_controller.yaml.key_path import KeyPath, dotted

MOST_REPORTED = 100
_LONGEST_KEY = 64
_TYPE_NAMES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "a mapping (`key: value` lines)",
    "dict_type": "a mapping (`key: value` lines)",
    "mapping_type": "a mapping (`key: value` lines)",
    "tuple_type": "a list",
}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_NAME_HINT = "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"


def pydantic_findings(
    error: ValidationError, document: Document, file_format: FileFormat
) -> Iterator[tuple[KeyPath, Finding | None]]:
    """Yield a pair for each error: its path in the file and its finding. After MOST_REPORTED
    errors, one last finding gives the number of further errors.

    The finding is None for an error that only follows from a problem that the document reports
    already.
    """
    details = error.errors(include_url=False)
    paths = [_path_in_file(detail, document.value) for detail in details]
    for detail, path in zip(details[:MOST_REPORTED], paths, strict=False):
        is_reported = _follows_from_broken(detail, path, document) or _is_emptied(
            detail, path, paths
        )
        yield path, None if is_reported else _finding(detail, path, document, file_format)
    if len(details) > MOST_REPORTED:
        left = len(details) - MOST_REPORTED
        yield (
            (),
            Finding(
                "more_findings",
                INFO,
                document.file,
                1,
                1,
                "",
                f"{left} more errors are not shown",
                "fix these first",
            ),
        )


def _follows_from_broken(detail: ErrorDetails, path: KeyPath, document: Document) -> bool:
    emptied = detail["type"] in ("missing", "too_short")
    return any(
        path[: len(bad)] == bad or (emptied and bad[: len(path)] == path) for bad in document.broken
    )


def _is_emptied(detail: ErrorDetails, path: KeyPath, paths: Sequence[KeyPath]) -> bool:
    """Return whether a list is empty only because its entries are faulty."""
    return detail["type"] == "too_short" and any(
        len(other) > len(path) and other[: len(path)] == path for other in paths
    )


def _path_in_file(detail: ErrorDetails, value: Any) -> KeyPath:
    """Return the path of an error in the file. Pydantic's location has further parts of its own
    (union tags, `[key]`), which are left out.
    """
    path: KeyPath = ()
    for part in detail["loc"]:
        inside = isinstance(value, dict) and part in value
        inside = inside or (
            isinstance(value, tuple) and isinstance(part, int) and part < len(value)
        )
        if inside:
            path, value = (*path, part), value[part]
    if detail["type"] == "missing":
        path = (*path, str(detail["loc"][-1]))
    return path


def _finding(
    detail: ErrorDetails, path: KeyPath, document: Document, file_format: FileFormat
) -> Finding:
    if detail["loc"][-1] != "[key]":  # show the value as it was written, not as a validator read it
        detail = detail | {"input": document.value_at(path, detail["input"])}
    code, message, hint = _describe(detail, path, file_format)
    at_key = (
        detail["type"] in ("extra_forbidden", "missing", "too_short")
        or detail["loc"][-1] == "[key]"
    )
    line, column = document.place(path, at_key=at_key)
    return Finding(code, ERROR, document.file, line, column, dotted(path), message, hint)


def _describe(detail: ErrorDetails, path: KeyPath, file_format: FileFormat) -> FindingText:
    kind, context, name = detail["type"], detail.get("ctx", {}), dotted(path)
    if kind == "extra_forbidden":
        unknown = f"{_shown(path[-1])} is not a key of {_section_name(path, file_format)}"
        return file_format.describe_unknown_key(path) or (
            "unknown_key",
            unknown,
            _unknown_key_hint(path, file_format),
        )
    if kind == "missing":
        return (
            "missing_key",
            f"`{path[-1]}` is missing from {_section_name(path, file_format)}",
            _missing_hint(path, file_format),
        )
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = _nearest(str(detail["input"]), choices)
        message = (
            f"`{name}` is {_shown(detail['input'])}, not "
            f"{' or '.join(f'`{choice}`' for choice in choices)}"
        )
        return (
            "bad_choice",
            message,
            f"did you mean `{near}`?" if near else f"write {context['expected']}".replace("'", "`"),
        )
    if kind == "string_pattern_mismatch":
        return (
            "bad_name",
            f"{_shown(detail['input'])} is not a valid name",
            file_format.names.get(path, _NAME_HINT),
        )
    if kind in ("too_short", "string_too_short"):
        return "empty", f"`{name}` is empty", _empty_hint(path, file_format)
    return _describe_value(detail, name)


def _describe_value(detail: ErrorDetails, name: str) -> FindingText:
    kind, context, written = detail["type"], detail.get("ctx", {}), detail["input"]
    if "problem" in context:
        return kind, f"`{name}` is {_shown(written)}, which {context['problem']}", context["hint"]
    for bound, word in _BOUNDS.items():
        if bound in context:
            share = isinstance(context[bound], float) and context[bound] in (0.5, 1.0)
            hint = (
                f"write {written} percent as `{written}%`"
                if share and isinstance(written, int | float) and 1 <= written < 100
                else ""
            )
            return (
                "out_of_range",
                f"`{name}` is {_shown(written)}, but it must be {word} {context[bound]:g}",
                hint,
            )
    wanted = _TYPE_NAMES.get(kind)
    if wanted is None:
        return "wrong_type", f"`{name}`: {detail['msg']}", ""
    return "wrong_type", f"`{name}` is {_shown(written)}, not {wanted}", _type_hint(kind, written)


def _type_hint(kind: str, written: object) -> str:
    if kind == "string_type" and isinstance(written, int | float):
        text = str(written).lower() if isinstance(written, bool) else written
        return f'quote the value: "{text}"'
    if (
        kind in ("int_type", "float_type")
        and isinstance(written, str)
        and re.fullmatch(r"-?[0-9.]+", written)
    ):
        return f"write the value without quotes: {written}"
    if kind == "tuple_type":
        return (
            "write a list, with `- ` before each entry"
            if isinstance(written, dict)
            else f"write the value in brackets: [{_plain(written)}]"
        )
    return ""


def _section_name(path: KeyPath, file_format: FileFormat) -> str:
    parent = dotted(path[:-1])
    return f"`{parent}`" if parent else file_format.noun


def _unknown_key_hint(path: KeyPath, file_format: FileFormat) -> str:
    model, key = file_format.model_at(path[:-1]), str(path[-1])
    if model is None:
        return "remove the key"
    near = _nearest(key.replace("-", "_"), model_keys(model))
    if near:
        return f"did you mean `{near}`?"
    home = file_format.section_of(key)
    if home is not None:
        return f"the key belongs in `{home}`" if home else "the key belongs at the top of the file"
    return f"known keys: {', '.join(model_keys(model))}"


def _missing_hint(path: KeyPath, file_format: FileFormat) -> str:
    return file_format.missing.get(dotted(path)) or file_format.missing.get(str(path[-1]), "")


def _empty_hint(path: KeyPath, file_format: FileFormat) -> str:
    return file_format.empty.get(dotted(path)) or file_format.empty.get(
        f"{path[0]}.*", "write a value or remove the key"
    )


def _nearest(word: str, choices: list[str]) -> str:
    found = (
        get_close_matches(word.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.6)
        if len(word) <= _LONGEST_KEY
        else []
    )
    return next((choice for choice in choices if found and choice.lower() == found[0]), "")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "empty" if value is None else _plain(value)


def _plain(value: object) -> str:
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else f"`{value}`"
        if isinstance(value, str)
        else f"{value}"
    )
    return text if len(text) <= _LONGEST_KEY + 2 else f"{text[: _LONGEST_KEY - 1]}…"
