"""Makes a log line safe to show: masks secrets, removes prompts and token ids, limits the
length.
"""

from __future__ import annotations

import re

LINE_LIMIT = 400

_MASKS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{4,}"), "hf_…"),
    (re.compile(r"\b(sk|nvapi|ghp|glpat|xox[abp])([-_])[A-Za-z0-9_-]{8,}"), r"\1\2…"),
    (re.compile(r"\bAKIA[A-Z0-9]{12,}"), "AKIA…"),
    (re.compile(r"(?i)\b(bearer|basic) +[^\s'\",]+"), r"\1 …"),
    (re.compile(r"(://[^/\s:@]{1,64}:)[^/\s@]+@"), r"\1…@"),
    # `--api-key X`, `api_key='X'`, `"HF_TOKEN": "X"`, `password=X`; `api_key=None` is not
    # a secret and stays
    (
        re.compile(
            r"(?i)((?<![a-z])(?:[a-z0-9_]*(?:api[-_]key|secret(?:[-_]key)?|passw(?:or)?d|(?:hf|"
            r"auth|access|api|hub)[-_]token))"
            r"['\"]?(?:\s*[:=]\s*|\s+))(?!None\b|null\b|''|\"\"|is\b|was\b|has\b|"
            r"not\b)(?:'[^']*'?|\"[^\"]*\"?|[^\s,;)\]}]+)"
        ),
        r"\1…",
    ),
)
# Token ids and texts of requests, in the form that `cur_batch` and request logs print
_IDS = re.compile(
    r"((?:\w*_)?(?:input|output|fill|token|prompt|prefix|decoded)_?(?:ids?|"
    r"tokens?)(?:_\w+)?['\"]?\s*[=:]\s*)[\[(]\s*-?\d[\d\s,.…-]*[\])]?"
)
_TEXTS = re.compile(
    r"(\b(?:text|prompt|content|origin_input_text|decoded_text)['\"]?\s*[=:]\s*)(?:'(?:[^'\\]|"
    r"\\.)*'?|\"(?:[^\"\\]|\\.)*\"?)"
)


def redact(text: str) -> str:
    """Return the text as one line without secrets and prompts. A result over 400 characters is cut
    and ends in `…`.
    """
    text = " ".join(text[: 16 * LINE_LIMIT].split())
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    text = _TEXTS.sub(r"\1…", _IDS.sub(r"\1[…]", text))
    return text if len(text) <= LINE_LIMIT else text[:LINE_LIMIT] + "…"
