"""Simulates SGLang's prefix cache: remembers which prompts were seen since the last flush."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class PrefixCache:
    """Finds the longest prefix, in tokens, that a prompt shares with an earlier prompt.

    The last token of a prompt never counts as cached, because a server always computes it.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._prefixes: set[int] = set()

    def match_and_insert(self, prompt: Sequence[Hashable]) -> int:
        """Return how many tokens of `prompt` are cached, and add the prompt to the cache."""
        if not self._enabled:
            return 0
        cached, chain, known = 0, 0, True
        for place, token in enumerate(prompt, start=1):
            chain = hash((chain, token))
            known = known and chain in self._prefixes
            if known:
                cached = place
            else:
                self._prefixes.add(chain)
        return min(cached, len(prompt) - 1)

    def flush(self) -> None:
        """Forget every prompt."""
        self._prefixes.clear()
