"""Owns which prompt each request of a run gets, and the salt that keeps runs out of each other's prefix cache; pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import sha256

from fleet_agent.load.prompt_sets import SETS

PREFIX = "builtin:"
WARM_UP = -1  # run index of a warm-up: its salts are those of no run


@dataclass(frozen=True, slots=True)
class Prompt:
    """The user message of one request and its digest (16 hex digits)."""

    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Draw:
    """What decides the prompts of a run: equal draws give equal prompts, whatever the variant.

    `scope` keeps campaigns apart on a server that outlives them (an external one): its job id. Empty elsewhere.
    """

    prompts: str  # builtin:NAME
    seed: int
    run_index: int
    scope: str = ""


def prompt_set(name: str) -> tuple[str, ...]:
    """The texts of `builtin:NAME`. Raises ValueError when there is none of that name."""
    if not name.startswith(PREFIX) or name.removeprefix(PREFIX) not in SETS:
        raise ValueError(f"prompts {name!r} are unknown; one of {', '.join(PREFIX + known for known in SETS)}")
    return SETS[name.removeprefix(PREFIX)]


def draw_prompt(draw: Draw, number: int) -> Prompt:
    """The prompt of request `number` (from 0): the same text in every run, behind a salt that is another one in each run."""
    texts = prompt_set(draw.prompts)
    text = f"{salt(draw, number)}\n\n{texts[order(draw.seed, len(texts))[number % len(texts)]]}"
    return Prompt(text, sha256(text.encode()).hexdigest()[:16])


def salt(draw: Draw, number: int) -> str:
    """Twelve hex digits in front of the user message: a prefix cache can match the chat template and no more (but for chance)."""
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}/{number}".encode()).hexdigest()[:12]


def order(seed: int, count: int) -> list[int]:
    """The order in which so many prompts are asked."""
    places = list(range(count))
    random.Random(f"prompts/{seed}").shuffle(places)
    return places
