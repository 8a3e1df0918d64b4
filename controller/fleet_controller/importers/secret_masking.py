"""Recognises secret values in a pasted file, and masks them in everything that is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_NAME = re.compile(
    r"(?:.*_)?(?:TOKEN"
    r"|(?:API|ACCESS|SECRET|PRIVATE|SIGNING|ENCRYPTION|LICENSE|ACCOUNT|AUTH|MASTER|ADMIN)?_?KEY"
    r"(?:_ID)?|APIKEY|SECRET(?:S)?|PASSWORD|PASSWD|PASS|PWD|PAT"
    r"|CREDENTIALS?|AUTHORIZATION|BEARER)",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"|true|false|yes|no|\d{1,5}|[/~.].*", re.IGNORECASE)
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
_OPTION = re.compile(
    r"(?:.*_)?(?:api_key|password|passwd|secret|(?:access|auth|hf|bearer|admin)_token|auth_key)"
)
_SHAPES = re.compile(
    r"\bhf_(?:(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,}|[A-Za-z0-9]{20,})\b"  # Hugging Face
    r"|\bsk-[A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bnvapi-[\w-]{16,}|\bAKIA[A-Z0-9]{16}\b|\bxox[abpr]-[\w-]{10,}"
    r"|\beyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]*|(?<=Bearer )[^\s'\"]{6,}"
)
_LOGIN = re.compile(r"(?<=://)[^\s/:@]*:([^\s/@]+)(?=@)")
# In characters. A shorter text, or a mere word (`test`, `EMPTY`), occurs in too many other places
# to be masked everywhere.
_SHORTEST, _SURE = 4, 8


def is_secret_name(name: str) -> bool:
    """Return True if the variable's name says that its value is a secret."""
    return bool(_NAME.fullmatch(name)) and name not in _NO_SECRETS


def is_secret(name: str, value: str) -> bool:
    """Return True if the value looks like a secret, or if the variable's name is that of a secret.

    The name does not count if the value is a switch, a small number or a path.
    """
    return (is_secret_name(name) and not _PLAIN.fullmatch(value)) or holds_secret(value)


def is_secret_option(name: str) -> bool:
    """Return True if the server option takes a secret."""
    return bool(_OPTION.fullmatch(name))


def holds_secret(text: str) -> bool:
    """Return True if the text contains a token of a known kind, or an address with a password in
    it.
    """
    return bool(_SHAPES.search(text) or _LOGIN.search(text))


def secret_texts(text: str) -> set[str]:
    """Return all parts of a file that look like secrets. They look like a known kind of token, or
    they come after the name of a secret variable or option.
    """
    found = set(_SHAPES.findall(text)) | set(_LOGIN.findall(text))
    for name, value in re.findall(
        r"(?<![\w-])([A-Za-z_][\w-]{0,80})[\"']?[ \t]*[=:]\s*[\"']?([^\s\"',;]+)", text
    ):
        name = name.replace("-", "_")
        is_named = is_secret_option(name) or (
            is_secret_name(name) and ("_" in name or name.isupper())
        )
        found |= {value} if is_named else set()
    for option, value in re.findall(
        r"--([\w-]+)[\"']?[=\s,]+(?:\\\s*\n\s*)?(?:-\s+)?[\"']?([^\s\"',]+)", text
    ):
        found |= {value} if is_secret_option(option.lower().replace("-", "_")) else set()
    for name, value in re.findall(
        r"name:\s*[\"']?(\w+)[\"']?\s*\n\s*value:\s*[\"']?([^\s\"']+)", text
    ):
        found |= {value} if is_secret_name(name) else set()
    return {value for value in found if is_maskable(value)}


def is_maskable(value: str) -> bool:
    """Return True if the secret is long or unusual enough to be masked wherever it occurs."""
    if re.match(r"[$\\]|secret://", value):
        return False
    return len(value) >= _SURE or (len(value) >= _SHORTEST and not value.isalpha())


def mask_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """Return `value` (text, list or mapping) with every secret text in it replaced."""
    longest_first = sorted(filter(is_maskable, secrets), key=len, reverse=True)
    return (
        _masked(value, re.compile("|".join(map(re.escape, longest_first))))
        if longest_first
        else value
    )


def _masked(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(MASK, value)
    if isinstance(value, Mapping):
        return {_masked(key, pattern): _masked(entry, pattern) for key, entry in value.items()}
    return (
        [_masked(entry, pattern) for entry in value] if isinstance(value, list | tuple) else value
    )
