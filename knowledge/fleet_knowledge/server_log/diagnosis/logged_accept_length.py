"""Sums up the accept lengths in decode lines, and infers steps and draft tokens from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_SAMPLES = 256
# Accept rate had three definitions: len/(steps+1) in 0.5.3 - 0.5.4, len/draft tokens in 0.5.5 -
# 0.5.10, (len-1)/(draft tokens-1) since 0.5.11 (accept_rate.py has the sources).
# With topk 1 the first two are equal, since draft tokens = steps + 1.
_WITH_BONUS, _WITHOUT_BONUS = "len/draft_tokens", "(len-1)/(draft_tokens-1)"
# Largest relative distance to a whole number that the rounding of two printed numbers explains
_ROUNDING_TOLERANCE = 0.06


@dataclass(slots=True)
class AcceptLengthStats:
    """Holds the sum of the accept lengths in a log, and the first pairs of accept length and accept
    rate.

    An accept length is the number of tokens per verify step, including the bonus token.
    """

    count: int = 0
    total: float = 0.0
    minimum: float = float("inf")
    maximum: float = 0.0
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def add(self, lengths: Sequence[float], rates: Sequence[float]) -> None:
        """Add a column of accept lengths and a column of accept rates. The columns are equally
        long, or `rates` is empty.
        """
        if not lengths:
            return
        self.count += len(lengths)
        self.total += sum(lengths)
        self.minimum, self.maximum = (
            min(self.minimum, min(lengths)),
            max(self.maximum, max(lengths)),
        )
        if rates and len(self.pairs) < _SAMPLES:
            self.pairs += [
                (length, rate)
                for length, rate in zip(lengths, rates, strict=False)
                if rate >= 0.1 and length > 1
            ][:_SAMPLES]

    def to_json(self) -> dict[str, Any]:
        """Return mean and range of the accept length, and the speculation settings inferred from
        it. A value is null if the lines do not show it.
        """
        tokens, definition = self._draft_tokens()
        return {
            "accept_len_mean": self.total / self.count if self.count else None,
            "accept_len_min": self.minimum if self.count else None,
            "accept_len_max": self.maximum if self.count else None,
            "accept_rate_definition": definition,
            "draft_tokens_inferred": tokens,
            "spec_num_steps_inferred": tokens - 1 if tokens else None,
        }

    def _draft_tokens(self) -> tuple[int | None, str | None]:
        with_bonus = [length / rate for length, rate in self.pairs]
        without = [1 + (length - 1) / rate for length, rate in self.pairs]
        judged = [
            (_spread(values), round(sum(values) / len(values)), name)
            for values, name in ((with_bonus, _WITH_BONUS), (without, _WITHOUT_BONUS))
            if values
        ]
        spread, tokens, name = min(judged, default=(1.0, 0, ""))
        return (tokens, name) if spread < _ROUNDING_TOLERANCE and tokens >= 2 else (None, None)


def _spread(values: Sequence[float]) -> float:
    """Return how far the values are from one whole number: the mean distance, divided by that
    number.

    The whole number is the rounded mean of the values, at least 1.
    """
    whole = max(round(sum(values) / len(values)), 1)
    return sum(abs(value - whole) for value in values) / len(values) / whole
