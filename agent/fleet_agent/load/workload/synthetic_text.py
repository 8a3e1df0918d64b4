"""Makes English text of a given length: plain sentences from phrases that were written for this
project. Equal keys give equal text.

The sentences are meaningful and hardly ever repeat, because repeated or random text makes a draft
model look better or worse than it is (docs/prompts.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Final

# measured on this text with the tokenizers of current models: 0.75 to 0.85
WORDS_PER_TOKEN: Final = 0.8

_WHEN: Final = (
    "In the first week of March",
    "On a wet Tuesday",
    "Shortly before the harvest",
    "After the second meeting",
    "At the end of the quarter",
    "During the long frost",
    "While the bridge was closed",
    "Before anybody had counted",
    "On the evening of the vote",
    "Two days later",
    "As soon as the ice had gone",
    "In the year of the flood",
    "Between the two holidays",
    "Towards noon",
    "When the figures were read",
    "Against all advice",
    "For the third time since May",
    "With the help of a retired surveyor",
)
_WHO: Final = (
    "the harbour master",
    "a clerk of the land office",
    "the younger of the two engineers",
    "the miller's family",
    "a teacher from the upper school",
    "the night shift at the waterworks",
    "the committee for roads",
    "an inspector who knew nobody there",
    "the owner of the sawmill",
    "four volunteers of the fire brigade",
    "the editor of the weekly paper",
    "a botanist on leave",
    "the cooperative of beekeepers",
    "the station's last signalman",
    "a contractor from the coast",
    "the district nurse",
    "the bell founder and her apprentice",
    "the council's treasurer",
    "a group of pensioners",
    "the ferry company",
)
_DID: Final = (
    "measured",
    "described in a letter",
    "offered to repair",
    "refused to pay for",
    "found no record of",
    "compared with an older plan",
    "sold at half its price",
    "asked the neighbours about",
    "photographed from three sides",
    "promised to replace",
    "took a closer look at",
    "wrote a careful report on",
    "lost patience with",
    "drew up a budget for",
    "learned by accident of",
    "insured for the first time",
    "gave a short talk on",
    "warned the mayor about",
    "moved by eleven metres",
    "bought back",
)
_WHAT: Final = (
    "the pump in the lower meadow",
    "a stretch of the old towpath",
    "the roof of the grain store",
    "nine chairs and a piano",
    "the telephone exchange",
    "a cellar full of glass jars",
    "the boundary stones near the quarry",
    "the timetable of the evening bus",
    "a map with two mistakes",
    "the lamp on the breakwater",
    "the school's weather station",
    "a barge that nobody had claimed",
    "the drains below the market",
    "the orchard behind the chapel",
    "a contract from another century",
    "the footbridge at the weir",
    "the museum's only clock",
    "the supply of winter salt",
    "a garden shed with a copper roof",
    "the well that had never run dry",
)
_SO: Final = (
    "so the price was set at {n} a month",
    "and {n} people signed for it",
    "which took {n} hours longer than planned",
    "because the ground had sunk by {n} millimetres",
    "although only {n} of the samples could be used",
    "and the bill came to {n} crowns",
    "so that {n} metres of pipe were left over",
    "until the {n}th page, where the account breaks off",
    "for which {n} litres of paint were needed",
    "and the answer was read out to {n} listeners",
    "while {n} others looked on and said nothing",
    "as number {n} of the register shows",
    "so the old rule was kept for another {n} weeks",
    "and nobody could say where the other {n} had gone",
    "which left {n} places for those who had waited longest",
    "but the letter was returned after {n} days",
)
_QUESTIONS: Final = (
    (
        "Which of the people above is named most often, and what do all entries about them "
        "have in common? Quote what you rely on."
    ),
    (
        "Write a summary of the record above in ten points, from the most costly affair to the "
        "least, with a figure in each point."
    ),
    (
        "List what was measured, counted or paid in the record above as a table of who, what "
        "and how much, and say which figures look wrong."
    ),
    (
        "Somebody claims that the record above was written by two people. Argue for and "
        "against it from its wording, and come to a judgement."
    ),
    (
        "Retell the record above as a letter to a friend who moved away, keeping to what is "
        "said there, and end with what is still unsettled."
    ),
    (
        "Choose the three affairs above that belong together, explain the connection step by "
        "step, and say what should be asked next."
    ),
    (
        "What does the record above say about water, roads and money? Answer in three "
        "sections, with the entries that each rests on."
    ),
    (
        "Put the entries of the record above that give a time into their likely order, and "
        "explain each decision that was not obvious."
    ),
)


@lru_cache(maxsize=8192)
def make_text(key: str, tokens: int) -> str:
    """Return English text of about `tokens` tokens, with WORDS_PER_TOKEN words per token. Texts for
    the same key have the same beginning.
    """
    left = max(1, round(tokens * WORDS_PER_TOKEN))
    rng = Random(key).random
    sentences: list[str] = []
    while left > 0:
        sentences.append(sentence := _sentence(rng))
        left -= sentence.count(" ") + 1
    return " ".join(sentences) if not left else " ".join(sentences).rsplit(" ", -left)[0]


def long_prompt(number: int, tokens: int) -> str:
    """Return a text of about `tokens` tokens that ends with a question about it."""
    return f"{make_text(f'long/{number}', tokens)}.\n\n{make_question(number)}"


def make_question(number: int) -> str:
    """Return question `number` about a generated text."""
    return _QUESTIONS[number % len(_QUESTIONS)]


def _sentence(rng: Callable[[], float]) -> str:
    when, who, did, what, so = (
        phrases[int(rng() * len(phrases))] for phrases in (_WHEN, _WHO, _DID, _WHAT, _SO)
    )
    return f"{when}, {who} {did} {what}, {so.replace('{n}', str(2 + int(rng() * 978)))}."
