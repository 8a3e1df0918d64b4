"""Makes the prompts of a replayed trace. They have the recorded lengths, and share beginnings where
the recorded prompts did.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import Final

from fleet_agent.load.workload.prompt_content import Content, random_ids
from fleet_agent.load.workload.synthetic_text import make_question, make_text
from fleet_protos.attachment import Trace

BLOCK_TOKENS: Final = 512  # tokens per block of a Mooncake trace
_QUESTION_TOKENS: Final = 40  # upper limit for the tokens of a question


@dataclass(frozen=True, slots=True)
class TracePrompts:
    """Makes one prompt for each request of the trace. Equal blocks of the trace become equal text.
    Tokens that no block covers become text that only this request has.
    """

    trace: Trace
    # above 0: prompts are random token ids below this, and their lengths are exact; 0: text
    end_id: int = 0

    def prompt(self, number: int) -> Content:
        """Return a prompt of about the recorded number of tokens. A prompt that is long enough ends
        with a question.
        """
        place = number % len(self.trace.at_ms)
        tokens = self.trace.prompt_tokens[place]
        return self._ids(place, tokens) if self.end_id else self._text(place, tokens)

    def shared_beginning_share(self, requests: int) -> float | None:
        """Return the share of prompt tokens that repeat the beginning of an earlier request, by the
        blocks of the trace. Return None for a trace without blocks.

        The share is computed over the first `requests` requests.
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
            # a beginning can only be known if all shorter ones are
            known = sum(beginning in seen for beginning in begun)
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
