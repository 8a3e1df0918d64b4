"""Owns what each request of a run asks: its prompt and how many tokens its answer has. Pure; the same for every variant, sends nothing."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from fleet_agent.load.lengths import length, share
from fleet_agent.load.prompts import Draw, order, prompt_set, salt
from fleet_protos.trial import Lengths, Workload


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `digest`: 16 hex digits of its prompt; `output_tokens`: exactly so many are asked for."""

    prompt: str
    digest: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Asks:
    """All requests of a run, by number from 0. A value: it goes to each shard, and whoever has it can ask again what was asked."""

    draw: Draw
    texts: tuple[str, ...]  # in the order in which they are asked
    output_tokens: int  # of every answer; 0: `output` says
    output: Lengths

    def ask(self, number: int) -> Ask:
        """Request `number`. Takes some 5 µs."""
        prompt = f"{salt(self.draw, number)}\n\n{self.texts[number % len(self.texts)]}"
        return Ask(prompt, sha256(prompt.encode()).hexdigest()[:16], self.length(number))

    def length(self, number: int) -> int:
        """Output tokens that request `number` asks for: the same in each run."""
        return self.output_tokens or length(self.output, share(self.draw.seed, "output", number))


def asks_of(workload: Workload, draw: Draw) -> Asks:
    """What a run of the workload asks. Raises ValueError for prompts or lengths that are not known."""
    texts = prompt_set(draw.prompts)
    asks = Asks(draw, tuple(texts[place] for place in order(draw.seed, len(texts))), workload.output_tokens, workload.output)
    asks.length(0)
    return asks
