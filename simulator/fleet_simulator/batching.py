"""Simulates continuous batching: decides which requests run, which wait, and which tokens each step
yields.

At each step, all running requests advance together. A step begins at the moment at which the step
before it was due to end. A late wake-up therefore does not delay later steps. The caller passes the
current time. Points in time, such as `now_s` and `at_s`, are wall seconds of the monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fleet_simulator.noise import draw_accept_lengths
from fleet_simulator.time_model import TimingConfiguration, accept_shares, decode_s, prefill_s

MAX_STEPS_PER_WAKE = 64


class TokenSink(Protocol):
    """Receives the tokens of one generation."""

    def on_tokens(self, generation: Generation, count: int) -> None:
        """Store `count` more tokens; `generation.done` already includes them."""

    def flush(self, generation: Generation) -> None:
        """Send the stored tokens. All steps that were due have been reported."""


@dataclass(slots=True, eq=False)
class Generation:
    """Holds the state of one request in the engine.

    `token_limit`: the number of tokens at which the request ends.
    `stops_itself`: True if it ends with a stop token, False if it ends at its length limit.
    `correct_drafts[n]`: the number of cycles in which exactly n drafts were accepted.
    """

    prompt_tokens: int
    cached_tokens: int
    token_limit: int
    ring_start: int
    stops_itself: bool
    sink: TokenSink
    number: int = 0
    arrived_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0
    done: int = 0
    verify_steps: int = 0
    correct_drafts: list[int] = field(default_factory=list)
    cancelled: bool = False
    accept_lengths: tuple[int, ...] = (1,)

    @property
    def finished(self) -> bool:
        """Return whether all tokens of the request have been generated."""
        return self.done >= self.token_limit


@dataclass(slots=True)
class Totals:
    """Counts requests, tokens and steps since the start of the server."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    verify_steps: int = 0
    decode_steps: int = 0
    aborted: int = 0


class Batching:
    """Runs the continuous batching of one server.

    `cap`: the maximum number of requests that run at the same time.
    `scale`: the model seconds that pass in one wall second.
    `noise_factor(at_s)`: the factor for the duration of a step that begins at `at_s`.
    """

    def __init__(
        self,
        configuration: TimingConfiguration,
        cap: int,
        scale: float,
        noise_factor: Callable[[float], float],
        seed: str,
    ) -> None:
        self.totals = Totals()
        self.running: list[Generation] = []
        self.waiting: deque[Generation] = deque()
        self.on_prefill: Callable[[list[Generation]], None] = lambda admitted: None
        self.on_decode: Callable[[float], None] = lambda at_s: None
        self._configuration = configuration
        self._cap = cap
        self._scale = scale
        self._noise_factor = noise_factor
        self._seed = seed
        spec = configuration.speculation
        self._shares = accept_shares(spec) if spec else ()
        self._decode_s: dict[int, float] = {}
        self._admitted: list[Generation] = []
        self._step_ends_s: float | None = None

    @property
    def busy(self) -> bool:
        """Return whether a request runs or waits."""
        return self._step_ends_s is not None

    def submit(self, generation: Generation, now_s: float) -> float:
        """Accept a request. Return the time at which the caller must call `wake`."""
        self.totals.requests += 1
        generation.number = self.totals.requests
        generation.arrived_s = now_s
        if self._shares:
            generation.accept_lengths = draw_accept_lengths(
                self._shares, f"{self._seed}:{generation.number}"
            )
            generation.correct_drafts = [0] * len(self._shares)
        self.waiting.append(generation)
        if self._step_ends_s is None:
            self._start_step(now_s)
        return self._step_ends_s or now_s

    def cancel(self, generation: Generation) -> None:
        """Mark a request whose client has disconnected. The request leaves the batch at the next
        step.
        """
        if not generation.finished and not generation.cancelled:
            generation.cancelled = True
            self.totals.aborted += 1

    def wake(self, now_s: float) -> float | None:
        """End the steps that are due, at most MAX_STEPS_PER_WAKE, and start the next step after
        each.

        Return the time at which the caller must call `wake` again. Return None if no request is
        left.
        """
        notified: dict[Generation, None] = {}
        steps = 0
        while (
            self._step_ends_s is not None
            and self._step_ends_s <= now_s
            and steps < MAX_STEPS_PER_WAKE
        ):
            ended_s = self._step_ends_s
            notified.update(dict.fromkeys(self._end_step(ended_s)))
            self._start_step(ended_s)
            steps += 1
        for generation in notified:
            generation.sink.flush(generation)
        return self._step_ends_s

    def _start_step(self, at_s: float) -> None:
        self.running = [
            generation
            for generation in self.running
            if not generation.finished and not generation.cancelled
        ]
        self._admit(at_s)
        if self._admitted:
            model_s = prefill_s(
                sum(one.prompt_tokens - one.cached_tokens for one in self._admitted),
                self._configuration,
            )
        elif self.running:
            model_s = self._cached_decode_s(len(self.running))
        else:
            self._step_ends_s = self.waiting[0].arrived_s if self.waiting else None
            return
        self._step_ends_s = at_s + model_s * self._noise_factor(at_s) / self._scale

    def _admit(self, at_s: float) -> None:
        self._admitted = []
        while (
            self.waiting
            and len(self.running) + len(self._admitted) < self._cap
            and self.waiting[0].arrived_s <= at_s
        ):
            generation = self.waiting.popleft()
            if not generation.cancelled:
                self._admitted.append(generation)

    def _cached_decode_s(self, batch: int) -> float:
        if batch not in self._decode_s:
            self._decode_s[batch] = decode_s(batch, self._configuration)
        return self._decode_s[batch]

    def _end_step(self, at_s: float) -> list[Generation]:
        if self._admitted:
            return self._end_prefill(at_s)
        for generation in self.running:
            self._advance(generation, at_s)
        if self.running:
            self.totals.decode_steps += 1
            self.on_decode(at_s)
        return self.running

    def _end_prefill(self, at_s: float) -> list[Generation]:
        admitted, self._admitted = self._admitted, []
        for generation in admitted:
            generation.first_token_s = at_s
            self.totals.prompt_tokens += generation.prompt_tokens
            self.totals.cached_tokens += generation.cached_tokens
            self._add_tokens(generation, 1, at_s)
        self.running.extend(admitted)
        self.on_prefill(admitted)
        return admitted

    def _advance(self, generation: Generation, at_s: float) -> None:
        if generation.cancelled:
            return
        count = generation.accept_lengths[generation.verify_steps % len(generation.accept_lengths)]
        if self._shares:
            generation.verify_steps += 1
            generation.correct_drafts[count - 1] += 1
            self.totals.verify_steps += 1
        self._add_tokens(generation, min(count, generation.token_limit - generation.done), at_s)

    def _add_tokens(self, generation: Generation, count: int, at_s: float) -> None:
        generation.done += count
        self.totals.generated_tokens += count
        if generation.finished:
            generation.finished_s = at_s
        if not generation.cancelled:
            generation.sink.on_tokens(generation, count)
