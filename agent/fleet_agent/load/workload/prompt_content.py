"""Handles the three forms of a prompt: text, messages and token ids. Salts, digests and converts
prompts of each form.
"""

from __future__ import annotations

import json
from array import array
from hashlib import sha256
from random import Random
from typing import Final, TypeGuard, cast

from fleet_agent.load.workload.synthetic_text import make_text
from fleet_protos.attachment import Message

Messages = tuple[Message, ...]
Ids = tuple[int, ...]
Content = str | Messages | Ids

FIRST_ID: Final = 1000  # most models have their special ids below this
END_ID: Final = 30_000  # every current model knows the ids below this
SALT_IDS: Final = 8  # number of leading ids that a salt replaces


def is_ids(content: Content) -> TypeGuard[Ids]:
    """Return whether the content is token ids."""
    return not isinstance(content, str) and (not content or isinstance(content[0], int))


def as_messages(content: Content) -> list[dict[str, str]]:
    """Return the content as messages for a chat endpoint. A text becomes one user message. Raises
    ValueError for token ids.
    """
    return [{"role": role, "content": text} for role, text in messages_of(content)]


def as_text(content: Content) -> str:
    """Return the content as one text, for an endpoint without roles. Messages are joined by empty
    lines. Raises ValueError for token ids.
    """
    return (
        content if isinstance(content, str) else "\n\n".join(text for _, text in _messages(content))
    )


def messages_of(content: Content) -> Messages:
    """Return the content as (role, text) pairs. A text becomes one user message. Raises ValueError
    for token ids.
    """
    return (("user", content),) if isinstance(content, str) else _messages(content)


def with_leading_text(content: Content, text: str, end_id: int = END_ID) -> Content:
    """Return the content with `text` at its beginning. In messages, `text` is put into the first
    message.

    In token ids, the first SALT_IDS ids are replaced by random ids, for which `text` is the seed.
    """
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    if is_ids(content):
        return random_ids(text, min(SALT_IDS, len(content)), end_id) + content[SALT_IDS:]
    (role, first), *rest = _messages(content)
    return ((role, f"{text}\n\n{first}"), *rest)


def with_shared_beginning(content: Content, key: str, tokens: int, end_id: int = END_ID) -> Content:
    """Return the content with about `tokens` additional tokens at its beginning. For token ids, the
    number is exact. Equal keys give equal beginnings.
    """
    return (
        random_ids(key, tokens, end_id) + content
        if is_ids(content)
        else with_leading_text(content, make_text(key, tokens))
    )


def content_size(content: Content) -> int:
    """Return the number of token ids, or the number of characters of a text or of messages."""
    return len(content) if is_ids(content) else len(as_text(content))


def content_digest(content: Content) -> str:
    """Return 16 hex digits that identify the content."""
    if is_ids(content):
        return sha256(array("I", content)).hexdigest()[:16]
    plain = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return sha256(plain.encode()).hexdigest()[:16]


def random_ids(key: str, count: int, end_id: int = END_ID) -> Ids:
    """Return `count` uniformly distributed token ids below `end_id`. Equal keys give equal ids."""
    first = min(FIRST_ID, end_id // 2)
    drawn, ids = memoryview(Random(key).randbytes(4 * count)).cast("I"), end_id - first
    return tuple([first + number % ids for number in drawn])


def _messages(content: Messages | Ids) -> Messages:
    if is_ids(content):
        raise ValueError("token ids can be sent only with api: generate")
    return cast(Messages, content)
