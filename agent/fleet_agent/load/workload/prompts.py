"""Owns which prompt each request of a run gets, and the salt that keeps runs out of each other's
prefix cache; pure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from fleet_agent.load.workload.prompt_content import Content
from fleet_agent.load.workload.prompt_sets import SETS
from fleet_agent.load.workload.synthetic_text import long_prompt
from fleet_protos.attachment import Prompts, Trace

PREFIX = "builtin:"
FILE = "file:"
RANDOM = "random:ids"
LONG_CONTEXT = "long_context"
BUILTIN = (*SETS, LONG_CONTEXT)
LONG_PROMPTS, LONG_TOKENS = 40, 8000
WARM_UP = -1  # run index of a warm-up: its salts are those of no run


@dataclass(frozen=True, slots=True)
class PromptDraw:
    """What decides the prompts of a run: equal draws give equal prompts, whatever the variant.

    `scope` keeps campaigns apart on a server that outlives them (an external one): its job id.
    Empty elsewhere.
    """

    prompts: str  # builtin:NAME | file:REF | random:ids
    seed: int
    run_index: int
    scope: str = ""


@lru_cache(maxsize=4)
def prompt_set(name: str) -> tuple[str, ...]:
    """The texts of `builtin:NAME`. Raises ValueError when there is none of that name."""
    known = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and known == LONG_CONTEXT:
        return tuple(long_prompt(number, LONG_TOKENS) for number in range(LONG_PROMPTS))
    if not name.startswith(PREFIX) or known not in SETS:
        raise ValueError(
            f"prompts {name!r} are unknown; one of {', '.join(PREFIX + known for known in BUILTIN)}"
        )
    return SETS[known]


def prompts_in_order(
    prompts: str, seed: int, files: Mapping[str, Trace | Prompts]
) -> tuple[Content, ...]:
    """The prompts of a builtin set or of a file in the order of the seed. Raises ValueError when
    they are not known or not there.
    """
    listed: tuple[Content, ...] = ()
    if prompts.startswith(FILE):
        found = files.get(prompts.removeprefix(FILE))
        listed = found.conversations if isinstance(found, Prompts) else ()
        if not listed:
            raise ValueError(f"the prompts {prompts} did not come with the trial")
    else:
        listed = prompt_set(prompts)
    return tuple(listed[place] for place in prompt_order(seed, len(listed)))


def salt(draw: PromptDraw, number: int) -> str:
    """Twelve hex digits in front of the user message: a prefix cache can match the chat template
    and no more (but for chance).
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}/{number}".encode()).hexdigest()[:12]


def run_salt(draw: PromptDraw) -> str:
    """The same for all requests of a run and another in each run: what they have in common is
    found, what other runs had is not.
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}".encode()).hexdigest()[:12]


def prompt_order(seed: int, count: int) -> list[int]:
    """The order in which so many prompts are asked."""
    places = list(range(count))
    random.Random(f"prompts/{seed}").shuffle(places)
    return places
