"""Holds the texts of the builtin prompt sets, written for this project (Apache-2.0, see
docs/prompts.md).
"""

from __future__ import annotations

from typing import Final

_CHAT_SUBJECTS: Final = (
    "a vegetable garden on a north-facing balcony",
    "moving to a city where I know nobody",
    "a birthday dinner for eight on a small budget",
    "learning to swim as an adult",
    "sharing a flat with a friend who works nights",
    "restoring an old wooden table",
    "a two-week cycling trip along a river",
    "going back to university at forty",
    "keeping two cats in a small flat",
    "starting a neighbourhood tool library",
    "a winter without a car in the countryside",
    "teaching a grandparent to use video calls",
)
_CHAT_FORMS: Final = (
    (
        "I am thinking about {}. What would you ask me first, and what would you suggest once "
        "you know the answers?"
    ),
    (
        "Give me an honest list of what usually goes wrong with {}, most likely first, and how "
        "people get out of it."
    ),
    (
        "Write a friendly letter of advice to somebody who begins with {} next month. Be "
        "concrete about the first week."
    ),
    (
        "Explain {} to a sceptical relative: what it costs, what it gives, and when it is "
        "better to leave it."
    ),
    (
        "Plan the next thirty days for {}, week by week, with one small goal for each and a "
        "way to see that it was met."
    ),
)
_CODE_SUBJECTS: Final = (
    (
        "Python",
        (
            "reads a CSV file of sensor values, drops rows with gaps and prints the hourly "
            "mean of each sensor"
        ),
    ),
    (
        "Python",
        (
            "keeps the hundred most recent results of a slow function and forgets each after "
            "ten minutes"
        ),
    ),
    (
        "Go",
        "copies a folder tree to another disk with four workers and stops cleanly on an interrupt",
    ),
    (
        "Rust",
        (
            "parses an expression with + - * / and parentheses into a tree and evaluates it "
            "with checked integers"
        ),
    ),
    (
        "TypeScript",
        (
            "watches a search box, waits for a pause in typing and shows only the answer to "
            "the newest query"
        ),
    ),
    ("C", "implements a ring buffer for one producer and one consumer without locks"),
    ("SQL", "finds for each customer the longest row of consecutive days with an order"),
    ("Java", "merges many sorted files that do not fit into memory into one sorted file"),
    ("Bash", "rotates backups so that seven daily, four weekly and twelve monthly ones remain"),
    (
        "Python",
        "schedules jobs with dependencies, runs what is ready and reports a cycle by its path",
    ),
    ("C++", "stores text with cheap insertion in the middle and undo of the last hundred edits"),
    (
        "Kotlin",
        "retries a network call with growing pauses, a deadline and no retry after a refusal",
    ),
)
_CODE_FORMS: Final = (
    (
        "Write a {0} program that {1}. Show the whole code with short comments, then explain "
        "its two hardest lines."
    ),
    (
        "Here is the task: in {0}, write something that {1}. List the edge cases first, then "
        "the code, then tests for each edge case."
    ),
    (
        "A colleague wrote {0} code that {1}, but it is slow and sometimes wrong. Name the "
        "likely mistakes and show a correct version."
    ),
    (
        "Design a small {0} library that {1}. Give its public functions with types, an example "
        "of use, and then the implementation."
    ),
)
_REASONING_SUBJECTS: Final = (
    (
        "a ferry carries {a} cars an hour and each crossing takes {b} minutes",
        "how long the last of {c} waiting cars waits",
    ),
    (
        "a tank fills in {a} minutes and drains in {c} minutes",
        "when it is full if the drain is opened {b} minutes late",
    ),
    (
        (
            "{a} people shake hands, but {b} of them arrived as couples who do not shake each "
            "other's hand"
        ),
        "how many handshakes there were",
    ),
    (
        "a clock loses {b} seconds an hour and was set right {c} hours ago",
        "what it shows at noon, and when it will be right again",
    ),
    (
        "a baker makes {a} loaves from {c} kilograms of flour and wastes {b} percent",
        "the flour that one loaf and {c} loaves need",
    ),
    (
        "three machines finish a job in {a}, {b} and {c} hours alone",
        "how long they take together if the slowest one stops halfway",
    ),
    (
        "a lottery draws {b} of {a} numbers",
        "the chance to have at least two right, and how it changes with one number more",
    ),
    (
        "a train of {c} metres passes a signal in {b} seconds and a bridge in {a} seconds",
        "its speed and the length of the bridge",
    ),
    (
        (
            "a queue gains a person every {b} minutes and a clerk serves one in {a} percent of "
            "that time"
        ),
        "its length after {c} minutes",
    ),
    (
        "a rope of {c} metres is cut {b} times, each piece half of the one before",
        "the length of the last piece and of all but the first",
    ),
    (
        "a shop raises a price by {b} percent and then lowers it by {b} percent, {a} times over",
        "what is left of a price of {c}",
    ),
    (
        "{a} coins, one of them lighter, and a balance",
        "the fewest weighings that always find it, and why {b} fewer cannot do",
    ),
)
_REASONING_FORMS: Final = (
    (
        "Suppose {0}. Work out {1}. Think step by step, state every assumption, and check the "
        "result in a second way."
    ),
    (
        "Consider this: {0}. A student who was asked for {1} was off by a factor of two. Solve "
        "it and find the likely slip."
    ),
    (
        "Given that {0}, derive a general formula for {1}, then put the numbers in and say how "
        "sensitive the result is to each of them."
    ),
    (
        "Explain to a twelve-year-old how to find {1} when {0}. Use a drawing in words, small "
        "steps, and end with the number."
    ),
)
_NUMBERS: Final = (
    (18, 6, 90),
    (24, 5, 120),
    (30, 8, 150),
    (12, 3, 75),
    (45, 9, 200),
    (36, 4, 110),
    (20, 7, 140),
    (27, 10, 96),
)

_PLACES: Final = (
    "Brennick",
    "Oxmere",
    "Tallow Bay",
    "Sankt Veit am Moos",
    "Port Halden",
    "Corrigan Falls",
    "Eastwick",
    "Lower Ardley",
    "Vasterby",
    "New Marrow",
    "Quillan",
    "Hather Green",
)
_AFFAIRS: Final = (
    (
        "the old lift bridge",
        "engineers found cracks in two of its bearings",
        "a ferry for walkers and cyclists",
    ),
    (
        "the town library",
        "a burst pipe reached the local history room",
        "a reading room in the former post office",
    ),
    (
        "the harbour market",
        "rents rose faster than the stalls could earn",
        "a market on two evenings a week",
    ),
    (
        "the night bus",
        "fewer than nine passengers used it on most nights",
        "shared taxis that are booked by telephone",
    ),
    (
        "the district hospital's kitchen",
        "meals travelled forty kilometres from a contractor",
        "a kitchen of its own with local farms",
    ),
    (
        "the river gauge",
        "its readings differed from the new satellite series by a hand's width",
        "three small gauges upstream",
    ),
    (
        "the secondary school's workshop",
        "no teacher could be found for metalwork",
        "afternoons with retired fitters",
    ),
    (
        "the allotments by the railway",
        "the ground was needed for a second track",
        "plots on the roof of the depot",
    ),
    (
        "the open-air pool",
        "heating it had become the largest item of the budget",
        "a longer season with cold water",
    ),
    (
        "the volunteer fire brigade",
        "half of its members now worked too far away in the daytime",
        "a joint watch with two villages",
    ),
)
_DETAILS: Final = (
    "The council heard eleven speakers, of whom seven asked for more time and two for none at all.",
    (
        "Costs were given as between four and six hundred thousand, a range that the auditor "
        "called honest but wide."
    ),
    (
        "Those who live nearest were the most divided: some feared noise, others the silence "
        "that would follow."
    ),
    "A survey with three hundred answers named reliability before price, and price before looks.",
    (
        "The regional office promised a third of the money on condition that work begins "
        "before the spring."
    ),
    (
        "An older plan from nineteen years ago was brought out again and found to answer half "
        "of the questions."
    ),
    (
        "Nobody could say who had signed the first contract, and the file held two versions of "
        "the same page."
    ),
    (
        "A trial of six weeks is to show whether the numbers of the forecast were within a "
        "tenth of the truth."
    ),
    (
        "The deputy mayor said that doing nothing had been the most expensive choice of the "
        "last ten years."
    ),
    "Shopkeepers offered to open earlier on two days if deliveries were allowed before seven.",
    (
        "The measurement was repeated on four mornings and differed by less than the width of "
        "the instrument's needle."
    ),
    (
        "A decision is due in the second week of the month, after the figures have been read "
        "once more in public."
    ),
)
_SUMMARY_FORMS: Final = (
    (
        "Summarise the report below in three sentences, then list every number in it with what "
        "it means."
    ),
    (
        "Read the report below. Write a headline, a summary of at most fifty words, and the "
        "three questions that it leaves open."
    ),
    (
        "Retell the report below for somebody who was away for a year, first what changed and "
        "then why, without leaving out a fact."
    ),
    "Turn the report below into minutes of a meeting: decisions, reasons, who must do what next.",
)


def _chat() -> tuple[str, ...]:
    return tuple(form.format(subject) for form in _CHAT_FORMS for subject in _CHAT_SUBJECTS)


def _code() -> tuple[str, ...]:
    return tuple(form.format(*subject) for form in _CODE_FORMS for subject in _CODE_SUBJECTS)


def _reasoning() -> tuple[str, ...]:
    texts = []
    for turn, form in enumerate(_REASONING_FORMS):
        for index, (given, asked) in enumerate(_REASONING_SUBJECTS):
            a, b, c = _NUMBERS[(3 * turn + index) % len(_NUMBERS)]
            texts.append(form.format(given.format(a=a, b=b, c=c), asked.format(a=a, b=b, c=c)))
    return tuple(texts)


def _summarise() -> tuple[str, ...]:
    texts = []
    for turn, form in enumerate(_SUMMARY_FORMS):
        for index, (what, why, instead) in enumerate(_AFFAIRS):
            place = _PLACES[(5 * turn + index) % len(_PLACES)]
            details = [_DETAILS[(turn + index + 5 * step) % len(_DETAILS)] for step in range(8)]
            report = (
                f"In {place}, {what} will not go on as before, because {why}. "
                f"Instead there is to be {instead}. " + " ".join(details)
            )
            texts.append(f"{form}\n\n{report}")
    return tuple(texts)


SETS: Final = {
    "chat": _chat(),
    "code": _code(),
    "reasoning": _reasoning(),
    "summarise": _summarise(),
}
