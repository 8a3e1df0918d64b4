"""Finds literal texts that a regular expression requires: every match contains at least one of the
texts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from itertools import product
from typing import Any

_PARSER: Any = importlib.import_module("re._parser")
_MAX_ALTERNATIVES = 64  # texts of one sequence


def required_literals(pattern: re.Pattern[str]) -> frozenset[str]:
    """Return literal texts, as long as possible. Every match of the pattern contains at least one
    of these texts.

    An empty set means that no such texts are known. If the pattern ignores case, the texts are in
    lower case.
    """
    tree = _PARSER.parse(pattern.pattern, pattern.flags)
    found = _required_of_sequence(list(tree), bool(pattern.flags & re.IGNORECASE))
    shortest = {
        text
        for text in found
        if text and not any(other in text and other != text for other in found)
    }
    return frozenset(shortest)


def _required_of_sequence(tree: Sequence[Any], folded: bool) -> frozenset[str]:
    """Return the most selective set of texts that a sequence requires. Every match of the sequence
    contains at least one text of the set.
    """
    sets: list[frozenset[str]] = []
    run = frozenset({""})
    for node in tree:
        exact = _exact(node, folded)
        if exact is not None and len(exact) * len(run) <= _MAX_ALTERNATIVES:
            run = frozenset(map("".join, product(run, exact)))
            continue
        sets.append(run)
        run = exact if exact is not None else frozenset({""})
        if exact is None:
            sets.append(_required_of_node(node, folded))
    return max((*sets, run), key=_selectivity)


def _selectivity(texts: frozenset[str]) -> tuple[int, int]:
    """Return a sort key that is larger for texts which fewer lines contain. Letters count most,
    since digits and punctuation are in every line.
    """
    fewest = min((4 * sum(map(str.isalpha, text)) + min(len(text), 3) for text in texts), default=0)
    return (fewest, -len(texts)) if fewest else (0, 0)


def _required_of_node(node: Any, folded: bool) -> frozenset[str]:
    """Return the texts that a node requires although the node itself is not a fixed text. Return an
    empty set if no such texts are known.
    """
    name, value = str(node[0]), node[1]
    if name == "SUBPATTERN":
        return _required_of_sequence(list(value[3]), _ignores_case(value, folded))
    if name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] >= 1:
        return _required_of_sequence(list(value[2]), folded)
    if name == "BRANCH":
        branches = [_required_of_sequence(list(branch), folded) for branch in value[1]]
        return (
            frozenset().union(*branches)
            if all(_selectivity(branch)[0] for branch in branches)
            else frozenset()
        )
    return frozenset()


def _exact(node: Any, folded: bool) -> frozenset[str] | None:
    """Return all texts that a node can match. Return None if they are unknown or too many."""
    name, value = str(node[0]), node[1]
    if name == "LITERAL":
        return frozenset({_character(value, folded)})
    if name in ("AT", "ASSERT", "ASSERT_NOT"):
        return frozenset({""})  # has no width
    if name == "IN":
        return _set_of(value, folded)
    parts = _parts(name, value, folded)
    known = [_sequence(list(part), folds) for part, folds in parts]
    sets = [texts for texts in known if texts is not None]
    if not parts or len(sets) < len(known):
        return None
    texts = frozenset[str]().union(*sets, [""] if name.endswith("REPEAT") and not value[0] else [])
    return texts if len(texts) <= _MAX_ALTERNATIVES else None


def _parts(name: str, value: Any, folded: bool) -> list[tuple[Any, bool]]:
    """Return (sequence, whether it ignores case) for each sequence in a node.

    Return an empty list if the node may repeat or holds no sequence.
    """
    if name == "SUBPATTERN":
        return [(value[3], _ignores_case(value, folded))]
    if name == "BRANCH":
        return [(branch, folded) for branch in value[1]]
    once = name in ("MAX_REPEAT", "MIN_REPEAT") and value[1] == 1
    return [(value[2], folded)] if once else []


def _sequence(tree: Sequence[Any], folded: bool) -> frozenset[str] | None:
    texts = frozenset({""})
    for node in tree:
        exact = _exact(node, folded)
        if exact is None or len(exact) * len(texts) > _MAX_ALTERNATIVES:
            return None
        texts = frozenset(map("".join, product(texts, exact)))
    return texts


def _set_of(value: Sequence[Any], folded: bool) -> frozenset[str] | None:
    if any(str(name) != "LITERAL" for name, _ in value) or len(value) > 4:
        return None
    return frozenset(_character(code, folded) for _, code in value)


def _character(code: int, folded: bool) -> str:
    return chr(code).lower() if folded else chr(code)


def _ignores_case(value: Sequence[Any], folded: bool) -> bool:
    return folded or bool(value[1] & re.IGNORECASE)
