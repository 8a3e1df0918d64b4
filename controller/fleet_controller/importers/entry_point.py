"""Finds the entry point of a server among the words of a command: `python -m sglang.launch_server`,
`sglang serve` or a path. Wrappers may come before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet_controller.importers.shell.expansion import SourceText
from fleet_controller.importers.sources.launch_values import EntryPoint

_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*")
_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.server")
_LAUNCH = re.compile(
    r"sglang\.launch_server\b|\bsglang\s+serve\b|sglang/launch_server\.py|sglang\.srt\.(?:server|entrypoints\.http_server)\b"
)
_OTHERS = {
    "router": re.compile(
        r"sglang_router|sglang-router|\bsmg\b|sglang\.launch_router|mini_lb|sgl-model-gateway"
    ),
    "bench": re.compile(
        r"sglang\.(?:bench_\w+|test\.send_one|benchmark\b)|genai-perf|guidellm|\bevalscope\b"
    ),
    "vllm": re.compile(
        r"\bvllm\s+serve\b|vllm\.entrypoints|\btrtllm-serve\b|text-generation-launcher|lmdeploy\s+serve"
    ),
}


def names_a_launch(text: str) -> bool:
    """Return True if some command in `text` seems to start SGLang's server."""
    return bool(_LAUNCH.search(text))


def other_program_kind(words: Sequence[SourceText]) -> str:
    """Return router, bench or vllm if the words start such a program, else an empty text."""
    text = " ".join(word.text for word in words[:12])
    return next((kind for kind, pattern in _OTHERS.items() if pattern.search(text)), "")


def find_entry(words: Sequence[SourceText]) -> EntryPoint | None:
    """Return the first entry point among the words, or None if they start no SGLang server."""
    for place, word in enumerate(words):
        found = _module(words, place) or _serve(words, place) or _file(words, place)
        if found:
            return found
        if re.search(r"\s", word.text) and names_a_launch(word.text):
            return None  # a script inside a word is read separately
    return None


def _module(words: Sequence[SourceText], place: int) -> EntryPoint | None:
    text = words[place].text
    if text == "-m" and place + 1 < len(words):
        module, options_at = words[place + 1].text, place + 2
    elif text.startswith("-m") and not text.startswith("--"):
        module, options_at = text[2:], place + 1
    else:
        return None
    if (
        module in ("sglang", "sglang.cli.main")
        and words[options_at : options_at + 1]
        and words[options_at].text == "serve"
    ):
        return _entry("serve", f"{module} serve", words, place, options_at + 1)
    return _entry("launch_server", module, words, place, options_at) if module in _MODULES else None


def _entry(
    kind: str, module: str, words: Sequence[SourceText], place: int, options_at: int
) -> EntryPoint:
    """Return the entry point of a `python -m` command. The interpreter and its own options come
    before `-m`.
    """
    before = place - 1
    while before >= 0 and not _is_interpreter(words[before]):
        if not _is_interpreter_option(words, before):
            return EntryPoint(
                kind,
                f"python -m {module}",
                None,
                tuple(words[:place]),
                options_at,
                words[place].line,
            )
        before -= 1
    if before < 0:
        return EntryPoint(
            kind, f"python -m {module}", None, tuple(words[:place]), options_at, words[place].line
        )
    python = words[before]
    spelling = f"{python.text.rpartition('/')[2]} -m {module}"
    return EntryPoint(kind, spelling, python, tuple(words[:before]), options_at, python.line)


def _is_interpreter(word: SourceText) -> bool:
    return bool(_PYTHON.fullmatch(word.text)) or (not word.is_known and "PY" in word.text.upper())


def _is_interpreter_option(words: Sequence[SourceText], place: int) -> bool:
    takes_value = place > 0 and words[place - 1].text in ("-X", "-W")
    return bool(re.fullmatch(r"-(?:[bBdEiIOPqsSuvx]+|[XW].*)", words[place].text)) or takes_value


def _serve(words: Sequence[SourceText], place: int) -> EntryPoint | None:
    text = words[place].text
    if (
        text.rpartition("/")[2] != "sglang"
        or not words[place + 1 : place + 2]
        or words[place + 1].text != "serve"
    ):
        return None
    if "/" not in text:
        return EntryPoint(
            "serve", "sglang serve", None, tuple(words[:place]), place + 2, words[place].line
        )
    python = SourceText(
        f"{text.rpartition('/')[0]}/python3",
        words[place].line,
        words[place].unknown,
        words[place].unevaluated,
    )
    return EntryPoint(
        "serve", "sglang serve", python, tuple(words[:place]), place + 2, words[place].line
    )


def _file(words: Sequence[SourceText], place: int) -> EntryPoint | None:
    if not words[place].text.endswith("sglang/launch_server.py"):
        return None
    python = words[place - 1] if place and _is_interpreter(words[place - 1]) else None
    before = place - 1 if python else place
    return EntryPoint(
        "launch_server",
        "python -m sglang.launch_server",
        python,
        tuple(words[:before]),
        place + 1,
        words[place].line,
    )
