"""Owns the promises of whole trials on real SGLang servers, driven by the agent's own runner: each
ends rightly and leaves nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.load.client.http_fetch import fetch
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.process_watch import scan_server_processes
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Measure, Outcome, TrialSpec, Workload
from tests.fakes.simulated_server import simulated_server
from tests.real_sglang.draft_model import write_draft
from tests.real_sglang.trials import Told, example, run_trial, with_args, with_python

pytestmark = pytest.mark.real_sglang

TOLD_WITHIN_S = 2.0  # a loaded machine included; the guard's own promise is one second
RANK = "sglang::scheduler_TP1"
CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
LOAD = Workload(
    name="single",
    concurrency=1,
    requests=2,
    prompts="builtin:chat",
    output_tokens=48,
    api="chat",
    request_timeout_s=60.0,
)


def failure(told: Told, kind: ErrorKind, *classes: str) -> ev.ServerFailed:
    """The only failure of a server whose trial ended as that, with nothing left."""
    over = told.one(ev.TrialOver)
    assert (over.outcome, over.kind) == (Outcome.FAILED, kind), over.message
    assert over.failure_class in classes, over.message
    assert_nothing_left(told)
    return told.one(ev.ServerFailed)


def proof(told: Told) -> ev.ConfigurationProved:
    """What the server of a trial showed that ended well, with nothing left."""
    over = told.one(ev.TrialOver)
    assert over.outcome is Outcome.OK, (over.failure_class, over.message)
    assert_nothing_left(told)
    return told.one(ev.ConfigurationProved)


def assert_nothing_left(told: Told) -> None:
    assert told.left() == []
    assert told.one(ev.ServerStopped).left_over == ()


def run(spec: TrialSpec, folder: Path) -> Told:
    return asyncio.run(run_trial(spec, folder))


# With load: two ranks, one of which is killed while it serves, and a draft whose proposals are
# never taken.


async def kill_rank_1(body: ev.Body, told: Told) -> None:
    """Once the load is warm."""
    if isinstance(body, ev.WarmedUp):
        (members,) = [
            await asyncio.to_thread(scan_server_processes, session) for session in told.sessions()
        ]
        url = told.one(ev.ServerLaunched).url
        told.notes["stranger"] = (await fetch(url, "/flush_cache"))[0]
        (victim,) = (member.process.pid for member in members if member.title == RANK)
        told.notes |= {"pid": victim, "killed": time.monotonic()}
        os.kill(victim, signal.SIGKILL)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Both trials, one load process between them."""
    folder = tmp_path_factory.mktemp("loaded")
    measure = Measure(runs_min=2, runs_max=2, warmup_requests=1)
    base = replace(
        example(), workloads=(replace(LOAD, requests=200, output_tokens=400),), measure=measure
    )
    two = with_args(base, "tp2", tp_size=2)
    two = replace(
        two,
        engine=replace(two.engine, env={**two.engine.env, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}),
    )
    draft = str(write_draft(Path(base.engine.model_path), folder / "draft"))
    eagle = with_args(
        base, "eagle3", speculative_algorithm="EAGLE3", speculative_draft_model_path=draft, **CHAIN
    )

    async def both() -> dict[str, Told]:
        load = LoadProcess()
        await load.start(folder / "load")
        try:
            return {
                "tp2": await run_trial(two, folder, kill_rank_1, load),
                "eagle3": await run_trial(replace(eagle, workloads=(LOAD,)), folder, load=load),
            }
        finally:
            await load.stop()

    return asyncio.run(both())


def test_two_ranks_are_launched_and_what_was_asked_took_effect(loaded: dict[str, Told]) -> None:
    proved = loaded["tp2"].one(ev.ConfigurationProved)
    assert proved.gates == ()
    assert proved.effective_args["tp_size"] == 2


def test_a_request_without_the_servers_own_key_is_refused(loaded: dict[str, Told]) -> None:
    assert loaded["tp2"].notes["stranger"] == 401
    assert loaded["tp2"].one(ev.ConfigurationProved).effective_args["api_key"] == "…"


def test_a_killed_rank_ends_the_trial_at_once_with_its_name(loaded: dict[str, Told]) -> None:
    told = loaded["tp2"]
    failed = failure(told, ErrorKind.SERVER_EXITED, "scheduler_died")
    took_s = told.when(ev.ServerFailed) - told.notes["killed"]
    print(
        f"\nkill -9 of {RANK}: told after {took_s:.2f} s, all gone after {told.when(ev.ServerStopped) - told.notes['killed']:.1f} s"
    )
    assert took_s < TOLD_WITHIN_S
    assert failed.rank == "TP1"
    assert f"(pid {told.notes['pid']:.0f})" in failed.message
    assert not [body for body in told.bodies if isinstance(body, ev.RunFinished)]


def test_a_draft_that_is_never_right_voids_its_trial_after_one_run(loaded: dict[str, Told]) -> None:
    told = loaded["eagle3"]
    over = told.one(ev.TrialOver)
    assert (over.outcome, over.kind, over.failure_class) == (
        Outcome.FAILED,
        ErrorKind.GATE_VOIDED,
        "spec_ineffective",
    ), over.message
    assert len([body for body in told.bodies if isinstance(body, ev.RunFinished)]) == 1
    assert_nothing_left(told)


# Without load.


def test_ngram_is_proved_and_a_wrapper_that_ignores_term_is_killed_with_everything(
    tmp_path: Path,
) -> None:
    spec = with_args(
        example(), "ngram", speculative_algorithm="NGRAM", speculative_num_draft_tokens=8
    )
    spec = with_python(spec, tmp_path, before="trap '' TERM", after="exec sleep 600")
    told = run(replace(spec, engine=replace(spec.engine, stop_timeout_s=12.0)), tmp_path)
    assert proof(told).effective_args["speculative_algorithm"] == "NGRAM"
    assert told.one(ev.ServerStopped).ended_by == "kill"
    phases = [body.phase for body in told.bodies if isinstance(body, ev.ServerProgressed)]
    assert phases[0] == "start"
    assert phases[-1] in ("http_bind", "ready")
    assert {"start", "load_weight"} <= set(told.one(ev.ServerReady).phases_s)


def test_another_server_of_the_same_model_that_took_the_port_is_told_at_once(
    tmp_path: Path,
) -> None:
    spec = example()
    with ExitStack() as others:

        async def be_quicker(body: ev.Body, told: Told) -> None:
            if isinstance(body, ev.ServerLaunching):
                words = ("--model-path", spec.engine.model_path)
                await asyncio.to_thread(
                    lambda: others.enter_context(simulated_server(tmp_path, *words, port=body.port))
                )

        told = asyncio.run(run_trial(spec, tmp_path, be_quicker))
    failure(told, told.one(ev.TrialOver).kind, "port_in_use", "wrong_identity")
    assert told.when(ev.ServerFailed) - told.when(ev.ServerLaunched) < 5 * TOLD_WITHIN_S
    assert not [body for body in told.bodies if isinstance(body, ev.ServerReady)]


def test_a_port_that_is_taken_by_something_mute_is_told_by_the_servers_own_words(
    tmp_path: Path,
) -> None:
    with socket.socket() as mute:

        async def be_quicker(body: ev.Body, told: Told) -> None:
            if isinstance(body, ev.ServerLaunching):
                mute.bind(("127.0.0.1", body.port))
                mute.listen()

        told = asyncio.run(run_trial(example(), tmp_path, be_quicker))
    failed = failure(told, ErrorKind.SERVER_LAUNCH, "port_in_use")
    assert "address already in use" in failed.cause_line
    bound_s = next(
        at_s
        for body, at_s in zip(told.bodies, told.at_s, strict=True)
        if body == ev.ServerProgressed("http_bind")
    )
    assert told.when(ev.ServerFailed) - bound_s < TOLD_WITHIN_S  # the launcher itself hangs on


def test_a_model_that_is_nowhere_is_told_as_such(tmp_path: Path) -> None:
    spec = example()
    told = run(
        replace(spec, engine=replace(spec.engine, model_path="nobody/no-such-model")), tmp_path
    )
    failed = failure(told, ErrorKind.CONFIG, "model_not_found")
    assert failed.hint
    assert_told_when_it_ended(told)


def test_a_folder_that_is_not_there_is_told_before_anything_is_launched(tmp_path: Path) -> None:
    spec = example()
    told = run(
        replace(spec, engine=replace(spec.engine, model_path=str(tmp_path / "none"))), tmp_path
    )
    assert told.one(ev.TrialOver).kind is ErrorKind.CONFIG
    assert not [body for body in told.bodies if isinstance(body, ev.ServerLaunching)]


def test_a_draft_that_is_nowhere_is_told_as_such(tmp_path: Path) -> None:
    spec = with_args(
        example(),
        "draft",
        speculative_algorithm="STANDALONE",
        speculative_draft_model_path="nobody/no-such-draft",
        **CHAIN,
    )
    failed = failure(run(spec, tmp_path), ErrorKind.CONFIG, "model_not_found", "spec_draft_missing")
    assert failed.cause_line


def test_too_small_a_share_of_memory_is_told_as_such(tmp_path: Path) -> None:
    spec = with_args(example(), "share", max_total_tokens=None, mem_fraction_static=0.0001)
    failed = failure(run(spec, tmp_path), ErrorKind.SERVER_OOM, "oom_kv_cache")
    assert "mem-fraction-static" in failed.cause_line


def test_a_limit_on_memory_is_told_as_such(tmp_path: Path) -> None:
    spec = with_python(
        with_args(example(), "limit", max_total_tokens=None), tmp_path, before="ulimit -v 6000000"
    )
    failed = failure(run(spec, tmp_path), ErrorKind.SERVER_OOM, "host_memory_short")
    assert "allocate memory" in failed.cause_line


def assert_told_when_it_ended(told: Told) -> None:
    """The launcher's end is an event: what the log says of it is known at once."""
    (ended_s,) = told.ended_s
    took_s = told.when(ev.ServerFailed) - ended_s
    print(
        f"\n{told.one(ev.TrialOver).failure_class}: told {took_s:+.2f} s after the launcher's end"
    )
    assert took_s < TOLD_WITHIN_S
