"""Makes the text that the simulated server generates, from a fixed ring of made-up words.

The prompt decides at which word of the ring a response starts.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable
from itertools import accumulate
from random import Random

RING_TOKENS = 4096
TEMPLATE = ("<|template|>", "<|simulated|>", "<|system|>", "<|turn|>")
_SYLLABLES = tuple(onset + vowel for onset in "bdfgklmnprstvzjw" for vowel in "aeio")


class TokenRing:
    """Holds the ring of words, encoded once, so that the text of a response is a slice of it.

    Each token is one word with a space before it.
    """

    def __init__(self) -> None:
        order = list(range(RING_TOKENS))
        Random("simulated").shuffle(order)
        words = [" " + _SYLLABLES[token // 64] + _SYLLABLES[token % 64] for token in order]
        self._text = "".join(words * 2).encode()
        self._ids = ",".join(str(token) for token in order * 2).encode() + b","
        self._text_at = _offsets(len(word) for word in words * 2)
        self._ids_at = _offsets(len(str(token)) + 1 for token in order * 2)

    def text(self, first: int, count: int) -> bytes:
        """Return the words of `count` tokens. The words need no escaping in JSON."""
        return self._slice(self._text, self._text_at, first, count)

    def ids(self, first: int, count: int) -> bytes:
        """Return the ids of `count` tokens, separated by commas."""
        return self._slice(self._ids, self._ids_at, first, count)[:-1]

    @staticmethod
    def _slice(ring: bytes, at: list[int], first: int, count: int) -> bytes:
        first %= RING_TOKENS
        if count <= RING_TOKENS:
            return ring[at[first] : at[first + count]]
        return (
            ring[at[first] : at[first + RING_TOKENS]] * (count // RING_TOKENS)
            + ring[at[first] : at[first + count % RING_TOKENS]]
        )


def _offsets(lengths: Iterable[int]) -> list[int]:
    return list(accumulate(lengths, initial=0))


def ring_position(prompt: tuple[str | int, ...]) -> int:
    """Return the position in the ring at which the response to `prompt` starts.

    The position is the same in every process and under every configuration.
    """
    return crc32("\x00".join(map(str, prompt)).encode()) % RING_TOKENS
