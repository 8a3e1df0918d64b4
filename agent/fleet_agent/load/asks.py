"""Owns what each request of a run asks: its prompt and how many tokens its answer has. Pure; the same for every variant, sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from fleet_agent.load.content import Content, begun_with, digest, random_ids
from fleet_agent.load.lengths import length, share
from fleet_agent.load.prompts import RANDOM, Draw, in_order, salt
from fleet_agent.load.traced import Traced
from fleet_protos.attachment import Prompts, Trace
from fleet_protos.trial import Lengths, Workload

_NO_FILES: Final[Mapping[str, Trace | Prompts]] = {}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `digest`: 16 hex digits of its prompt; `output_tokens`: exactly so many are asked for."""

    prompt: Content
    digest: str
    output_tokens: int


class Source(Protocol):
    """Where prompts come from: a value, so that it goes to shards."""

    def prompt(self, number: int) -> Content:
        """What request `number` asks, before its salt."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Prompts of a set or a file, in the order in which they are asked."""

    prompts: tuple[Content, ...]

    def prompt(self, number: int) -> Content:
        """See `Source`; from the beginning again after the last."""
        return self.prompts[number % len(self.prompts)]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Random token ids, as many as the lengths say. Text that means nothing: a server may answer it in loops."""

    seed: int
    tokens: int  # of every prompt; 0: `lengths` says
    lengths: Lengths

    def prompt(self, number: int) -> Content:
        """See `Source`."""
        count = self.tokens or length(self.lengths, share(self.seed, "input", number))
        return random_ids(f"{self.seed}/{number}", count)


@dataclass(frozen=True, slots=True)
class Asks:
    """All requests of a run, by number from 0. A value: it goes to each shard, and whoever has it can ask again what was asked."""

    draw: Draw
    source: Source
    output_tokens: int  # of every answer; 0: `output` says, or else `outputs`
    output: Lengths
    outputs: tuple[int, ...] = ()  # of a trace: of each answer

    def ask(self, number: int) -> Ask:
        """Request `number`. Takes some 5 µs for a prompt that lies ready, and some 0.1 µs a token for one that is made."""
        prompt = begun_with(self.source.prompt(number), salt(self.draw, number))
        return Ask(prompt, digest(prompt), self.length(number))

    def length(self, number: int) -> int:
        """Output tokens that request `number` asks for: the same in each run."""
        if self.output_tokens or not self.outputs or self.output.distribution:
            return self.output_tokens or length(self.output, share(self.draw.seed, "output", number))
        return self.outputs[number % len(self.outputs)]


def asks_of(workload: Workload, draw: Draw, files: Mapping[str, Trace | Prompts] = _NO_FILES) -> Asks:
    """What a run of the workload asks; `files` are those that it names, by ref. Raises ValueError for what is not known or not there."""
    trace = files.get(workload.trace)
    if isinstance(trace, Trace):
        source: Source = Traced(trace, workload.prompts == RANDOM)
        asks = Asks(draw, source, workload.output_tokens, workload.output, trace.output_tokens)
    elif workload.trace:
        raise ValueError(f"workload {workload.name!r}: its trace {workload.trace} did not come with the trial")
    elif workload.prompts == RANDOM:
        asks = Asks(draw, Drawn(draw.seed, workload.input_tokens, workload.input), workload.output_tokens, workload.output)
    else:
        asks = Asks(draw, Listed(in_order(draw, files)), workload.output_tokens, workload.output)
    asks.ask(0)
    return asks
