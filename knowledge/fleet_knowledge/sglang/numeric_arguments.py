"""Knows the options of SGLang's server that take a number, and which texts each option accepts as a
number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

# human_readable_int of sglang/srt/utils/common.py
_COUNTED = re.compile(r"\s*([0-9]+(\.[0-9]+)?(k|M|G|T)|[0-9]+(Ki|Mi|Gi|Ti))\s*")
WHOLE, COUNTED, NUMBER = "whole", "counted", "number"


@cache
def numeric_arguments() -> Mapping[str, str]:
    """Return a map from SGLang's own option name to the kind of number that the option takes.

    The kinds are `whole`, `counted` (a whole number, or a number with a unit such as `k` or `Mi`)
    and `number`.
    """
    lines = (
        files(__package__)
        .joinpath("numeric_arguments.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    words = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: kind for name, kind in words}


def accepts_value(name: str, value: object) -> bool:
    """Return whether argparse accepts the value's text. If the option is not known to take a
    number, every text is accepted.
    """
    kind, text = numeric_arguments().get(name), str(value)
    if kind is None:
        return True
    return (
        _parses(int, text)
        or (kind == COUNTED and bool(_COUNTED.fullmatch(text)))
        or (kind == NUMBER and _parses(float, text))
    )


def _parses(read: type[int] | type[float], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True
