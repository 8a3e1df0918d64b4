"""Promises of what the requests of a run ask: the seed decides, variants and runs ask alike, and
lengths follow their distribution.
"""

from __future__ import annotations

import math
import pickle
import re
import statistics
import time
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest

from fleet_agent.load.client.request_body import LoadTarget, completion_body
from fleet_agent.load.workload.arrivals import replay_offsets_s
from fleet_agent.load.workload.prompt_content import END_ID, FIRST_ID, as_text, is_ids
from fleet_agent.load.workload.prompts import PromptDraw, prompt_set
from fleet_agent.load.workload.request_plan import RequestPlan, build_request_plan
from fleet_agent.load.workload.synthetic_text import WORDS_PER_TOKEN, make_question, make_text
from fleet_agent.load.workload.trace_prompts import TracePrompts
from fleet_protos.attachment import Prompts, Trace
from fleet_protos.trial_types import Lengths, Part, SharedPrefix, Workload

FIXED = Workload("w", concurrency=4, prompts="builtin:chat", output_tokens=9)
UNIFORM = Workload("w", concurrency=4, prompts="builtin:chat", output=Lengths("uniform", 3, 7))
LOGNORMAL = Workload(
    "w",
    concurrency=4,
    prompts="builtin:chat",
    output=Lengths("lognormal", most=3000, median=150, sigma=0.8),
)


def asks(workload: Workload, seed: int = 1, run_index: int = 0) -> RequestPlan:
    return build_request_plan(workload, PromptDraw(workload.prompts, seed, run_index))


def lengths(workload: Workload, count: int, seed: int = 1, run_index: int = 0) -> list[int]:
    made = asks(workload, seed, run_index)
    return [made.planned_request(number).output_tokens for number in range(count)]


def test_a_number_is_the_length_of_every_answer() -> None:
    assert set(lengths(FIXED, 50)) == {9}


@pytest.mark.parametrize(
    "name",
    [
        "builtin:chat",
        "builtin:code",
        "builtin:reasoning",
        "builtin:summarise",
        "builtin:long_context",
    ],
)
def test_the_same_seed_asks_the_same_prompts_in_the_same_order(name: str) -> None:
    first, second, other = (
        [
            build_request_plan(
                replace(FIXED, prompts=name), PromptDraw(name, seed, 2)
            ).planned_request(n)
            for n in range(70)
        ]
        for seed in (5, 5, 6)
    )
    assert first == second
    assert [ask.prompt for ask in first] != [ask.prompt for ask in other]
    texts = [as_text(ask.prompt)[14:] for ask in first]
    assert set(texts) <= set(prompt_set(name)) and len(set(texts)) >= 40


def test_runs_ask_the_same_things_behind_salts_that_never_repeat() -> None:
    asked = [
        as_text(asks(FIXED, run_index=run).planned_request(number).prompt)
        for run in (-1, 0, 1)
        for number in range(100)
    ]
    salts, texts = zip(*(prompt.split("\n\n", 1) for prompt in asked), strict=True)
    assert len(set(salts)) == 300
    assert texts[:100] == texts[100:200] == texts[200:]


def test_campaigns_on_one_external_server_have_salts_of_their_own() -> None:
    first, second = (
        as_text(
            build_request_plan(FIXED, PromptDraw("builtin:chat", 1, 0, scope))
            .planned_request(0)
            .prompt
        )
        for scope in ("job-a", "job-b")
    )
    assert first[:12] != second[:12]
    assert first[12:] == second[12:]


def test_uniform_lengths_are_each_as_likely_and_none_is_outside() -> None:
    counted = Counter(lengths(UNIFORM, 5000))
    assert sorted(counted) == [3, 4, 5, 6, 7]
    assert all(count == pytest.approx(1000, rel=0.15) for count in counted.values())


def test_lognormal_lengths_have_their_median_and_spread_and_are_cut_at_the_most() -> None:
    drawn = lengths(LOGNORMAL, 5000)
    assert statistics.median(drawn) == pytest.approx(150, rel=0.05)
    assert statistics.stdev(map(math.log, drawn)) == pytest.approx(0.8, rel=0.05)
    narrow = Workload(
        "w", prompts="builtin:chat", output=Lengths("lognormal", most=200, median=150, sigma=0.8)
    )
    assert max(lengths(narrow, 5000)) == 200
    assert (
        min(
            lengths(
                Workload(
                    "w",
                    prompts="builtin:chat",
                    output=Lengths("lognormal", most=9, median=1, sigma=3),
                ),
                500,
            )
        )
        == 1
    )


def test_lengths_are_the_same_in_every_run_and_others_with_another_seed() -> None:
    assert lengths(LOGNORMAL, 100, run_index=0) == lengths(LOGNORMAL, 100, run_index=7)
    assert lengths(LOGNORMAL, 100, seed=1) != lengths(LOGNORMAL, 100, seed=2)


def test_what_a_shard_asks_is_what_the_whole_asks() -> None:
    made = asks(LOGNORMAL)
    shard: RequestPlan = pickle.loads(pickle.dumps(made))
    assert [shard.planned_request(number) for number in range(1, 40, 2)] == [
        made.planned_request(number) for number in range(1, 40, 2)
    ]


@pytest.mark.parametrize("output", [Lengths(), Lengths("normal", 1, 5)])
def test_a_workload_without_lengths_is_refused(output: Lengths) -> None:
    with pytest.raises(ValueError, match="use uniform or lognormal"):
        asks(Workload("w", prompts="builtin:chat", output=output))


TRACE = Trace((0, 500, 2000), (1100, 1400, 60), (5, 6, 7), ((1, 2, 3), (1, 2, 4), ()))
REPLAY = Workload("w", trace="x", speed=2.0, requests=3)


def beginning(one: str, other: str) -> str:
    """What both begin with."""
    return "".join(
        mark
        for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )


def words(text: str) -> int:
    return len(text.split())


def test_a_trace_is_asked_at_its_times_with_its_lengths() -> None:
    made = build_request_plan(REPLAY, PromptDraw("", 1, 0), {"x": TRACE})
    assert replay_offsets_s(TRACE, REPLAY) == (0, 0.25, 1)
    assert replay_offsets_s(TRACE, replace(REPLAY, requests=2, speed=0.0)) == (0, 0.5)
    assert [made.planned_request(number).output_tokens for number in range(4)] == [5, 6, 7, 5]
    assert [
        build_request_plan(
            replace(REPLAY, output_tokens=9), PromptDraw("", 1, 0), {"x": TRACE}
        ).output_length(number)
        for number in range(3)
    ] == [9, 9, 9]


def test_prompts_of_a_trace_have_about_the_length_that_it_recorded() -> None:
    prompts = [TracePrompts(TRACE).prompt(number) for number in range(3)]
    assert [words(prompt) / WORDS_PER_TOKEN for prompt in prompts] == [
        pytest.approx(tokens, rel=0.02) for tokens in (1100, 1400, 60)
    ]
    assert prompts[0].endswith(make_question(0))


def test_equal_blocks_are_equal_beginnings_and_what_follows_differs() -> None:
    first, second, third = (TracePrompts(TRACE).prompt(number) for number in range(3))
    shared = len(beginning(first, second).split()) / WORDS_PER_TOKEN
    assert shared == pytest.approx(1024, rel=0.01)
    assert len(beginning(first, third).split()) < 12


def test_made_text_hardly_says_a_sentence_twice() -> None:
    sentences = make_text("a", 20_000).split(". ")
    assert len(set(sentences)) > 0.99 * len(sentences)
    assert make_text("a", 500) != make_text("b", 500)


def test_prompts_of_a_file_are_asked_with_all_their_messages_in_the_order_of_the_seed() -> None:
    conversations = tuple((("system", "s"), ("user", f"question {number}")) for number in range(20))
    workload = replace(FIXED, prompts="file:x")
    made = build_request_plan(workload, PromptDraw("file:x", 1, 0), {"x": Prompts(conversations)})
    asked = [made.planned_request(number).prompt for number in range(40)]
    bodies = [
        completion_body(LoadTarget("http://h"), "chat", prompt, 5)["messages"] for prompt in asked
    ]
    assert [[message["role"] for message in messages] for messages in bodies] == [
        ["system", "user"]
    ] * 40
    assert all(re.fullmatch(r"[0-9a-f]{12}\n\ns", messages[0]["content"]) for messages in bodies)
    questions = [messages[1]["content"] for messages in bodies]
    assert sorted(questions[:20]) == sorted(f"question {number}" for number in range(20))
    assert questions[:20] == questions[20:]
    assert questions != [f"question {number}" for number in range(40)]


def test_messages_are_one_text_where_an_endpoint_has_no_roles() -> None:
    assert (
        completion_body(LoadTarget("http://h"), "completions", (("system", "s"), ("user", "u")), 5)[
            "prompt"
        ]
        == "s\n\nu"
    )
    assert (
        completion_body(LoadTarget("http://h"), "generate", (("system", "s"), ("user", "u")), 5)[
            "text"
        ]
        == "s\n\nu"
    )


def test_a_file_that_did_not_come_is_refused() -> None:
    with pytest.raises(ValueError, match="the trial lacks the file of the prompts file:x"):
        build_request_plan(replace(FIXED, prompts="file:x"), PromptDraw("file:x", 1, 0))
    with pytest.raises(ValueError, match="the trial lacks the file of its trace x"):
        build_request_plan(REPLAY, PromptDraw("", 1, 0))


def test_random_prompts_are_ids_of_exactly_their_length_that_no_run_repeats() -> None:
    workload = replace(FIXED, prompts="random:ids", input=Lengths("uniform", 100, 200))
    first, second = (
        [
            build_request_plan(workload, PromptDraw("random:ids", 1, run))
            .planned_request(number)
            .prompt
            for number in range(50)
        ]
        for run in (0, 1)
    )
    assert all(
        is_ids(prompt)
        and 100 <= len(prompt) <= 200
        and FIRST_ID <= min(prompt) <= max(prompt) < END_ID
        for prompt in first
    )
    assert [len(prompt) for prompt in first] == [len(prompt) for prompt in second]
    assert all(
        one[:4] != other[:4] and one[8:] == other[8:]
        for one, other in zip(first, second, strict=True)
    )
    assert completion_body(LoadTarget("http://h"), "generate", first[0], 5)["input_ids"] == first[0]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_token_ids_go_to_generate_alone(api: str) -> None:
    with pytest.raises(ValueError, match="token ids can be sent only with api: generate"):
        completion_body(LoadTarget("http://h"), api, (1, 2, 3), 5)


def test_a_trace_of_random_ids_has_exactly_its_lengths_and_its_shared_beginnings() -> None:
    made = build_request_plan(
        replace(REPLAY, prompts="random:ids"), PromptDraw("random:ids", 1, 0), {"x": TRACE}
    )
    first, second, third = (made.kinds[0].source.prompt(number) for number in range(3))
    assert (len(first), len(second), len(third)) == (1100, 1400, 60)
    assert first[:1024] == second[:1024]
    assert first[1024:1100] != second[1024:1100]


def test_long_prompts_are_long_and_no_two_alike() -> None:
    texts = prompt_set("builtin:long_context")
    assert len(set(texts)) == len(texts) == 40
    assert all(words(text) / WORDS_PER_TOKEN == pytest.approx(8000, rel=0.02) for text in texts)
    assert len(set(text[:100] for text in texts)) == 40


def test_asking_is_cheap() -> None:
    """Less than 30 µs by far; the bound is wide, for machines that are slow or busy."""
    made = asks(LOGNORMAL)
    begun = time.perf_counter()
    for number in range(2000):
        made.planned_request(number)
    assert (time.perf_counter() - begun) / 2000 < 300e-6


GROUPS = replace(FIXED, cache="flush", prefix=SharedPrefix(4, 300))


def prompts(workload: Workload, count: int = 12, run_index: int = 0) -> list[str]:
    made = build_request_plan(workload, PromptDraw(workload.prompts, 1, run_index), {"x": TRACE})
    return [as_text(made.planned_request(number).prompt) for number in range(count)]


def common(one: str, other: str) -> int:
    return len(beginning(one, other))


def test_requests_of_a_group_share_their_beginning_and_no_more() -> None:
    asked = prompts(GROUPS)
    assert words(asked[0][: common(asked[0], asked[4])]) / WORDS_PER_TOKEN == pytest.approx(
        300, abs=5
    )
    assert common(asked[0], asked[4]) == pytest.approx(common(asked[4], asked[8]), abs=3)
    assert max(common(asked[0], asked[number]) for number in (1, 2, 3)) < 60


def test_no_run_finds_what_another_run_sent_unless_the_cache_is_shared() -> None:
    for workload in (FIXED, GROUPS, replace(FIXED, cache="flush"), replace(REPLAY, cache="flush")):
        assert (
            max(
                common(one, other)
                for one in prompts(workload)
                for other in prompts(workload, run_index=1)
            )
            < 6
        )
    shared = replace(FIXED, cache="shared")
    assert prompts(shared) == prompts(shared, run_index=1)
    assert (
        common(
            prompts(replace(GROUPS, cache="shared"))[0],
            prompts(replace(GROUPS, cache="shared"), run_index=1)[4],
        )
        > 1000
    )


def test_salted_requests_share_nothing_whatever_their_groups() -> None:
    asked = prompts(replace(GROUPS, cache="salt"))
    assert (
        max(common(one, other) for place, one in enumerate(asked) for other in asked[place + 1 :])
        < 6
    )


def test_groups_of_random_ids_share_exactly_their_beginning() -> None:
    workload = replace(GROUPS, prompts="random:ids", input_tokens=100)
    made = build_request_plan(workload, PromptDraw("random:ids", 1, 0))
    first, second = (made.planned_request(number).prompt for number in (0, 4))
    assert len(first) == len(second) == 400
    assert (first[:300] == second[:300], first[300] == second[300]) == (True, False)


@pytest.mark.parametrize(
    ("workload", "planned"),
    [
        (FIXED, None),
        (replace(GROUPS, cache="salt"), None),
        (replace(FIXED, cache="shared"), None),
        (replace(GROUPS, prompts="random:ids", input_tokens=100), 0.75 * 96 / 100),
        (replace(REPLAY, cache="flush"), 1024 / 2560),
    ],
)
def test_the_share_that_a_cache_may_find_is_known_before(
    workload: Workload, planned: float | None
) -> None:
    found = build_request_plan(
        workload, PromptDraw(workload.prompts, 1, 0), {"x": TRACE}
    ).planned_cached_share(100)
    assert found == (planned if planned is None else pytest.approx(planned, rel=0.01))


CODE = Part(3, "builtin:code", 6, prefix=SharedPrefix(2, 100))
MIX = Workload(
    "w", concurrency=4, mix=(Part(6, "builtin:chat", 5), CODE, Part(1, "builtin:reasoning", 7))
)


def test_a_mixture_asks_each_kind_as_often_as_its_weight_says_and_alike_in_every_run() -> None:
    made = build_request_plan(MIX, PromptDraw("", 1, 0))
    counted = Counter(made.planned_request(number).output_tokens for number in range(5000))
    assert [counted[tokens] / 5000 for tokens in (5, 6, 7)] == [
        pytest.approx(share, rel=0.1) for share in (0.6, 0.3, 0.1)
    ]
    again = build_request_plan(MIX, PromptDraw("", 1, 8))
    assert [again.output_length(number) for number in range(200)] == [
        made.output_length(number) for number in range(200)
    ]
    assert [
        build_request_plan(MIX, PromptDraw("", 2, 0)).output_length(number) for number in range(200)
    ] != [made.output_length(number) for number in range(200)]


def test_each_kind_of_a_mixture_asks_its_own_prompts() -> None:
    made = build_request_plan(replace(MIX, cache="flush"), PromptDraw("", 1, 0))
    sets = {
        5: prompt_set("builtin:chat"),
        6: prompt_set("builtin:code"),
        7: prompt_set("builtin:reasoning"),
    }
    for ask in map(made.planned_request, range(100)):
        assert as_text(ask.prompt).endswith(sets[ask.output_tokens])
    assert 0 < (made.planned_cached_share(1000) or 0) < 0.5


def test_a_mixture_with_prompts_that_are_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the file of the prompts file:x"):
        build_request_plan(
            replace(MIX, mix=(*MIX.mix, Part(0.001, "file:x", 5))), PromptDraw("", 1, 0)
        )


CHATS = replace(FIXED, cache="flush", turns=3, requests=9)


def test_a_turn_carries_what_was_said_before_it_behind_one_salt() -> None:
    made = build_request_plan(CHATS, PromptDraw("builtin:chat", 1, 0))
    first = made.planned_request(3)
    said = made.extend_history(3, (), "answer one")
    second = made.planned_request(4, said)
    third = made.planned_request(5, made.extend_history(4, said, "answer two"))
    messages = completion_body(LoadTarget("http://h"), "chat", third.prompt, 5)["messages"]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert [messages[place]["content"] for place in (1, 3)] == ["answer one", "answer two"]
    opening = completion_body(LoadTarget("http://h"), "chat", first.prompt, 5)["messages"][0]
    assert [
        completion_body(LoadTarget("http://h"), "chat", ask.prompt, 5)["messages"][0]
        for ask in (second, third)
    ] == [opening, opening]
    assert opening["content"][:12] != as_text(made.planned_request(0).prompt)[:12]
    assert made.planned_cached_share(9) is None


def test_with_salts_no_turn_begins_as_another() -> None:
    made = build_request_plan(replace(CHATS, cache="salt"), PromptDraw("builtin:chat", 1, 0))
    second = made.planned_request(4, made.extend_history(3, (), "answer"))
    assert common(as_text(made.planned_request(3).prompt), as_text(second.prompt)) < 6


def test_think_times_are_exponential_bounded_and_alike_in_every_run() -> None:
    made, again = (build_request_plan(CHATS, PromptDraw("builtin:chat", 1, run)) for run in (0, 5))
    times = [made.think_s(number, 2.0) for number in range(5000)]
    assert statistics.mean(times) == pytest.approx(2, rel=0.05)
    assert statistics.stdev(times) == pytest.approx(2, rel=0.1)
    assert max(times) <= 20
    assert times == [again.think_s(number, 2.0) for number in range(5000)]
    assert made.think_s(1, 0.0) == 0


def test_a_session_is_of_one_kind() -> None:
    made = build_request_plan(replace(MIX, turns=4), PromptDraw("", 1, 0))
    assert all(
        len({made.output_length(number) for number in range(first, first + 4)}) == 1
        for first in range(0, 400, 4)
    )
    assert len({made.output_length(number) for number in range(400)}) == 3


@pytest.mark.parametrize(
    "workload",
    [
        replace(FIXED, input_tokens=200),
        replace(GROUPS, input_tokens=200),
        replace(REPLAY, cache="flush"),
    ],
)
@pytest.mark.parametrize("vocabulary", [16, 512, 200_000])
def test_no_random_id_is_beyond_the_vocabulary(workload: Workload, vocabulary: int) -> None:
    made = build_request_plan(
        replace(workload, prompts="random:ids", vocabulary=vocabulary),
        PromptDraw("random:ids", 1, 0),
        {"x": TRACE},
    )
    ids = [one for number in range(20) for one in made.planned_request(number).prompt]
    assert max(one for one in ids if isinstance(one, int)) < vocabulary
    assert len(set(ids)) > min(vocabulary // 2, 1000) * 0.6
