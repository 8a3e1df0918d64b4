"""Owns the prompts of a replayed trace: text of the length and with the shared beginnings that it
recorded, in place of its words. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Final

from fleet_agent.load.workload.prompt_content import Content, random_ids
from fleet_agent.load.workload.synthetic_text import make_question, make_text
from fleet_protos.attachment import Trace

BLOCK_TOKENS: Final = 512  # of a block of a Mooncake trace
_QUESTION_TOKENS: Final = 40  # what a question takes, with some to spare


@dataclass(frozen=True, slots=True)
class TracePrompts:
    """One prompt for each request of the trace. Equal blocks are equal text; what no block covers
    is of that request alone.
    """

    trace: Trace
    end_id: int = (
        0  # above 0: random token ids below it in place of text, and the lengths are exact
    )

    def prompt(self, number: int) -> Content:
        """Of text about as many tokens as recorded, a question last; only text where there is no
        room for one.
        """
        place = number % len(self.trace.at_ms)
        tokens = self.trace.prompt_tokens[place]
        return self._ids(place, tokens) if self.end_id else self._text(place, tokens)

    def shared_beginning_share(self, requests: int) -> float | None:
        """Of all prompt tokens of the first requests, those in blocks that begin as an earlier one
        did; None for a trace without blocks.
        """
        if not self.trace.blocks:
            return None
        seen: set[int] = set()
        found = 0
        for tokens, blocks in zip(
            self.trace.prompt_tokens[:requests], self.trace.blocks, strict=False
        ):
            begun = list(
                accumulate(blocks, lambda before, block: hash((before, block)), initial=0)
            )[1:]
            known = sum(
                beginning in seen for beginning in begun
            )  # a beginning is known when all shorter ones are
            found += min(tokens, known * BLOCK_TOKENS)
            seen.update(begun)
        return found / max(1, sum(self.trace.prompt_tokens[:requests]))

    def _ids(self, place: int, tokens: int) -> Content:
        blocks = self.trace.blocks[place] if self.trace.blocks else ()
        ids = chain.from_iterable(
            random_ids(f"block/{block}", BLOCK_TOKENS, self.end_id) for block in blocks
        )
        known = tuple(islice(ids, tokens))
        return known + random_ids(f"request/{place}", tokens - len(known), self.end_id)

    def _text(self, place: int, tokens: int) -> str:
        left = tokens - _QUESTION_TOKENS if tokens > 2 * _QUESTION_TOKENS else tokens
        parts: list[str] = []
        for block in self.trace.blocks[place] if self.trace.blocks else ():
            if left > 0:
                parts.append(make_text(f"block/{block}", min(left, BLOCK_TOKENS)))
            left -= BLOCK_TOKENS
        if left > 0:
            parts.append(make_text(f"request/{place}", left))
        return (
            f"{' '.join(parts)}.\n\n{make_question(place)}"
            if tokens > 2 * _QUESTION_TOKENS
            else " ".join(parts)
        )
