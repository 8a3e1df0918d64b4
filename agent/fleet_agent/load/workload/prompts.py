"""Selects the prompt and the salt of each request of a run. A salt keeps a server from using cached
prefixes of other runs.
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
    """Holds the values that determine the prompts of a run. Equal values give equal prompts for
    every variant.

    `scope` is the id of the job if the server is external. Such a server outlives jobs, and its
    jobs must not share cached prefixes. For other servers `scope` is empty.
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
        builtin = ", ".join(PREFIX + known for known in BUILTIN_PROMPTS)
        raise ValueError(f"the prompts {name!r} are unknown: use one of {builtin}")
    return SETS[known]


def prompts_in_order(
    prompts: str, seed: int, files: Mapping[str, Trace | Prompts]
) -> tuple[Content, ...]:
    """Return the prompts of a builtin set or of a file, in the order in which the seed shuffles
    them.

    Raises ValueError if the set is unknown or the trial lacks the file.
    """
    listed: tuple[Content, ...] = ()
    if prompts.startswith(FILE):
        found = files.get(prompts.removeprefix(FILE))
        listed = found.conversations if isinstance(found, Prompts) else ()
        if not listed:
            raise ValueError(f"the trial lacks the file of the prompts {prompts}")
    else:
        listed = prompt_set(prompts)
    return tuple(listed[place] for place in prompt_order(seed, len(listed)))


def salt(draw: PromptDraw, number: int) -> str:
    """Return the salt of one request: twelve hex digits before the user message. With it, a prefix
    cache can match only the chat template.
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}/{number}".encode()).hexdigest()[:12]


def run_salt(draw: PromptDraw) -> str:
    """Return the salt that all requests of a run have. With it, a prefix cache can match only what
    requests of the same run share.
    """
    return sha256(f"{draw.scope}/{draw.seed}/{draw.run_index}".encode()).hexdigest()[:12]


def prompt_order(seed: int, count: int) -> list[int]:
    """Return the numbers from 0 to count - 1 in the order in which the prompts are sent."""
    places = list(range(count))
    random.Random(f"prompts/{seed}").shuffle(places)
    return places
