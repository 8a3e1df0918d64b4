"""Selects the prompt of each request of a run, and the salt that keeps a run out of another run's
prefix cache.
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
from fleet_protos.attachment import BUILTIN_PROMPTS, Prompts, Trace

PREFIX = "builtin:"
FILE = "file:"
RANDOM = "random:ids"
LONG_CONTEXT = "long_context"
LONG_PROMPTS, LONG_TOKENS = 40, 8000
WARM_UP = -1  # run index of a warm-up: no run has the same salts


@dataclass(frozen=True, slots=True)
class PromptDraw:
    """The values that decide the prompts of a run. Equal draws give equal prompts, whatever the
    variant.

    `scope` is the job's id on a server that outlives jobs (an external one), so that jobs do not
    share cached prefixes. It is empty elsewhere.
    """

    prompts: str  # builtin:NAME | file:REF | random:ids
    seed: int
    run_index: int
    scope: str = ""


@lru_cache(maxsize=4)
def prompt_set(name: str) -> tuple[str, ...]:
    """Return the texts of `builtin:NAME`. Raises ValueError if the name is unknown."""
    known = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and known == LONG_CONTEXT:
        return tuple(long_prompt(number, LONG_TOKENS) for number in range(LONG_PROMPTS))
    if not name.startswith(PREFIX) or known not in SETS:
        raise ValueError(
            f"unknown prompts {name!r}, "
            f"expected one of {', '.join(PREFIX + known for known in BUILTIN_PROMPTS)}"
        )
    return SETS[known]


def prompts_in_order(
    prompts: str, seed: int, files: Mapping[str, Trace | Prompts]
) -> tuple[Content, ...]:
    """Return the prompts of a builtin set or of a file, shuffled by the seed. Raises ValueError if
    the set is unknown or the file did not come with the trial.
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
    """Return the salt of one request: twelve hex digits in front of the user message. A prefix
    cache can then match only the chat template, apart from chance.
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}/{number}".encode()).hexdigest()[:12]


def run_salt(draw: PromptDraw) -> str:
    """Return the salt of a run, the same for all of its requests. A prefix cache then matches what
    the requests of this run share, and nothing from other runs.
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}".encode()).hexdigest()[:12]


def prompt_order(seed: int, count: int) -> list[int]:
    """Return the numbers 0..count-1 in the order in which the prompts are sent."""
    places = list(range(count))
    random.Random(f"prompts/{seed}").shuffle(places)
    return places
