"""Owns which prompts have been seen since the last flush, token by token. Pure values; never knows
what a token means.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class PrefixCache:
    """The longest common prefix with any prompt kept, in tokens; never the whole prompt, as its
    last token is always computed.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._prefixes: set[int] = set()

    def match_and_insert(self, prompt: Sequence[Hashable]) -> int:
        """Cached tokens of `prompt`, which is kept from now on."""
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
