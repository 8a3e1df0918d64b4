"""The store on a real database: SQLite always, PostgreSQL where its server is installed."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from fleet_controller.core.job import HostChoice
from fleet_controller.core.quarantine import HostFailure, HostRecord
from fleet_controller.core.schedule_inputs import waiting_job_of
from fleet_controller.core.trial_state import HOST_GIVEN_UP, Attempt
from fleet_controller.store import database
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_controller.store.tables import metadata
from fleet_controller.store.writer_lock import hold_writer_lock
from fleet_protos import events as ev
from fleet_protos.codec import to_json
from fleet_protos.errors import ConfigError, Conflict, ErrorKind, StoreLost
from fleet_protos.trial_types import (
    Artifact,
    EngineKind,
    EngineSpec,
    Gate,
    GateEffect,
    Outcome,
    Phase,
    RunResult,
    TrialSpec,
)
from fleet_protos.v1 import trial_pb2
from tests.fakes.postgres import run_postgres

JOB = JobRow("job-1", "job", "name: job\n", "job.yaml", 5, "simulated", 20.0, 60.0)
SPECS = [
    TrialSpec(
        f"job-1-b1-v{index}",
        1,
        "job-1",
        "job",
        f"v{index}",
        {},
        1,
        "here",
        EngineSpec(EngineKind.SIMULATED),
    )
    for index in (1, 2)
]
RUN = RunResult(
    "single", 1, 7, 5.5, 20.0, 1, 0, 500, {"output_tok_s": 88.8},
    (Gate("prefix_cache_hit", GateEffect.VOID_RUN, "why"),), Artifact("job-1-b1-v1/1/single-001.parquet", "ab", 12),
)  # fmt: skip


def told(sequence: int, body: ev.Body, phase: Phase = Phase.MEASURING) -> ev.Event:
    return ev.Event(sequence, 100 + sequence, SPECS[0].trial_id, 1, 0, phase, body)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with run_postgres() as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, postgres: str, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "deep" / "store.sqlite3")
        return
    if not postgres:
        pytest.skip("NOT RUN: no PostgreSQL server is installed here (apt-get install postgresql)")
    yield postgres
    engine = database.connect(postgres)
    with engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    store = Store.open(address)
    store.add_job(JOB, SPECS)
    yield store
    store.close()


def test_migrations_make_exactly_the_tables_that_the_code_uses(address: str) -> None:
    engine = database.connect(address)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_head_names_the_newest_migration() -> None:
    script = ScriptDirectory(str(Path(database.__file__).parent / "migrations"))
    assert script.get_current_head() == database.HEAD


def test_a_job_and_its_trials_come_back_as_they_were_put_in(store: Store, address: str) -> None:
    store.close()
    again = Store.open(address)
    assert again.jobs() == [JOB]
    assert [trial.spec for trial in again.trials("job-1")] == SPECS
    again.close()


def test_an_outline_is_the_trial_without_what_is_launched(store: Store) -> None:
    store.save_attempt([SPECS[1].trial_id], Attempt(1, phase=Phase.MEASURING))
    whole, outlines = store.trials("job-1"), store.trial_outlines("job-1")
    assert [trial.attempts for trial in outlines] == [trial.attempts for trial in whole]
    for field in ("trial_id", "job_id", "variant", "host", "block"):
        assert [getattr(trial.spec, field) for trial in outlines] == [
            getattr(trial.spec, field) for trial in whole
        ]


def test_an_event_told_twice_is_stored_once(store: Store) -> None:
    event = told(3, ev.RunFinished(RUN))
    first = store.record_event("agent", "here", event)
    assert first is not None
    assert first.runs == 1
    assert store.record_event("agent", "here", event) is None
    assert [stored.run for stored in store.runs("job-1")] == [RUN]
    assert store.events(SPECS[0].trial_id, 1) == [event]
    assert store.last_sequence("agent") == 3


def test_the_same_sequence_of_another_agent_is_another_event(store: Store) -> None:
    store.record_event("old", "here", told(1, ev.TrialAccepted(SPECS[0])))
    assert (
        store.record_event("new", "here", replace(told(1, ev.TrialAccepted(SPECS[0])), attempt=2))
        is not None
    )
    assert [attempt.number for attempt in store.find_trial(SPECS[0].trial_id).attempts] == [1, 2]


def test_what_cannot_be_stored_leaves_nothing_half_written(store: Store) -> None:
    with pytest.raises(ValueError, match="out of range"):
        store.record_event("agent", "here", told(1, ev.RunFinished(replace(RUN, index=1 << 40))))
    assert store.last_sequence("agent") == 0
    assert store.events(SPECS[0].trial_id, 1) == []
    assert store.find_trial(SPECS[0].trial_id).attempts == ()


def test_a_run_that_is_told_again_under_another_number_counts_once(store: Store) -> None:
    store.record_event("agent", "here", told(1, ev.RunFinished(RUN)))
    store.record_event(
        "agent", "here", told(2, ev.RunFinished(replace(RUN, metrics={"output_tok_s": 1.0})))
    )
    assert [stored.run for stored in store.runs("job-1")] == [RUN]
    assert store.missing_artifacts("agent") == [RUN.artifact]
    assert store.last_sequence("agent") == 2


def test_an_event_of_a_trial_of_another_store_is_passed_over(store: Store) -> None:
    assert (
        store.record_event(
            "agent", "here", replace(told(9, ev.AgentRestarted()), trial_id="foreign")
        )
        is None
    )
    assert store.last_sequence("agent") == 9


def test_runs_carry_the_outcome_of_their_attempt(store: Store) -> None:
    store.record_event("agent", "here", told(1, ev.RunFinished(RUN)))
    store.record_event(
        "agent",
        "here",
        told(2, ev.TrialOver(Outcome.FAILED, ErrorKind.SERVER_EXITED, "c", "m"), Phase.OVER),
    )
    (run,) = store.runs("job-1")
    assert (run.variant, run.host, run.block, run.attempt, run.trial_outcome) == (
        "v1",
        "here",
        1,
        1,
        Outcome.FAILED,
    )


def test_artifacts_are_owed_until_they_were_fetched(store: Store) -> None:
    store.record_event("agent", "here", told(1, ev.RunFinished(RUN)))
    assert store.missing_artifacts("agent") == [RUN.artifact]
    assert store.missing_artifacts("other") == []
    store.mark_artifact_fetched(RUN.artifact.name)
    assert store.missing_artifacts("agent") == []


def test_an_attempt_is_written_and_written_over(store: Store) -> None:
    store.save_attempt([SPECS[1].trial_id], Attempt(1))
    store.save_attempt(
        [SPECS[1].trial_id],
        Attempt(1, phase=Phase.OVER, outcome=Outcome.FAILED, kind=ErrorKind.CONFIG),
    )
    assert [trial.attempts for trial in store.trials("job-1")] == [
        (), (Attempt(1, phase=Phase.OVER, outcome=Outcome.FAILED, kind=ErrorKind.CONFIG),),
    ]  # fmt: skip


def test_an_attempt_that_nobody_began_becomes_none(store: Store) -> None:
    store.save_attempt([SPECS[0].trial_id], Attempt(1))
    assert (
        store.record_event("agent", "here", replace(told(1, ev.RunFinished(RUN)), attempt=7))
        is None
    )
    assert [attempt.number for attempt in store.find_trial(SPECS[0].trial_id).attempts] == [1]
    assert (store.attempt(SPECS[0].trial_id, 7), store.last_sequence("agent")) == (None, 1)


@pytest.mark.parametrize("newer", [False, True])
def test_an_end_that_comes_after_its_attempt_was_given_up_counts_unless_a_newer_one_was_begun(
    store: Store, newer: bool
) -> None:
    trial_id = SPECS[0].trial_id
    given_up = Attempt(
        1, "agent", Phase.OVER, Outcome.FAILED, ErrorKind.HOST_UNREACHABLE, HOST_GIVEN_UP, "away"
    )
    store.save_attempt([trial_id], given_up)
    if newer:
        store.save_attempt([trial_id], Attempt(2))
    store.record_event("agent", "here", told(1, ev.RunFinished(RUN)))
    after = store.record_event("agent", "here", told(2, ev.TrialOver(Outcome.OK), Phase.OVER))
    assert after == store.attempt(trial_id, 1)
    assert (after.outcome, after.runs) == (Outcome.FAILED if newer else Outcome.OK, 1)
    assert [(run.attempt, run.trial_outcome) for run in store.runs("job-1")] == [(1, after.outcome)]
    assert (
        store.record_event("agent", "here", told(2, ev.TrialOver(Outcome.OK), Phase.OVER)) is None
    )


def test_a_store_put_back_to_an_earlier_day_takes_the_attempt_that_it_forgot(store: Store) -> None:
    store.save_attempt(
        [SPECS[0].trial_id], Attempt(1, "agent", Phase.OVER, Outcome.FAILED, ErrorKind.LOAD_FAILED)
    )
    assert (
        store.record_event(
            "agent", "here", replace(told(9, ev.TrialOver(Outcome.OK), Phase.OVER), attempt=2)
        )
        is not None
    )
    assert store.find_trial(SPECS[0].trial_id).newest.outcome is Outcome.OK  # type: ignore[union-attr]


def test_a_controller_that_was_replaced_writes_nothing_more(store: Store, address: str) -> None:
    first = store.take_over()
    newer = Store.open(address)
    second = newer.take_over()
    assert (second.controller_id, second.epoch) == (first.controller_id, first.epoch + 1)
    for write in (
        lambda: store.record_event("agent", "here", told(1, ev.RunFinished(RUN))),
        lambda: store.save_attempt([SPECS[0].trial_id], Attempt(1)),
        lambda: store.cancel_job("job-1"),
        lambda: store.mark_artifact_fetched("x"),
    ):
        with pytest.raises(Conflict, match="another controller has taken over the store"):
            write()
    assert newer.last_sequence("agent") == 0
    assert newer.record_event("agent", "here", told(1, ev.RunFinished(RUN))) is not None
    assert store.jobs() == [JOB], "it may still look"
    newer.close()


def test_a_submit_that_is_repeated_makes_no_second_job(store: Store) -> None:
    again = [replace(spec, trial_id=f"{spec.trial_id}-again", job_id="job-9") for spec in SPECS]
    assert store.add_job(replace(JOB, job_id="job-9"), again, "key") == "job-9"
    assert store.add_job(replace(JOB, job_id="job-10"), SPECS, "key") == "job-9"
    assert [job.job_id for job in store.jobs()] == ["job-1", "job-9"]
    assert (
        store.job_of_request("key"),
        store.job_of_request("other"),
        store.job_of_request(""),
    ) == ("job-9", "", "")


def test_what_is_decided_about_a_host_comes_back_and_replaces_what_was(
    store: Store, address: str
) -> None:
    aside = HostRecord(
        "b",
        aside="gpu_lost in t",
        aside_since_unix_ns=7,
        setbacks=2,
        failures=(HostFailure("t", 1, "gpu_lost", 3),),
    )
    store.save_host(HostRecord("a", drained=True, drain_reason="a NUL \0 in it"))
    store.save_host(aside)
    store.save_host(HostRecord("a", drained=True, drain_reason="new kernel"))
    store.close()
    again = Store.open(address)
    assert again.host_records() == [HostRecord("a", drained=True, drain_reason="new kernel"), aside]
    again.close()


def test_a_trial_gets_its_host_together_with_its_first_attempt(store: Store) -> None:
    placed = replace(SPECS[0], host="elsewhere", witness=False)
    store.save_attempt([placed.trial_id], Attempt(1), [placed, replace(SPECS[1], host="elsewhere")])
    assert [(trial.spec.host, len(trial.attempts)) for trial in store.trials("job-1")] == [
        ("elsewhere", 1),
        ("elsewhere", 0),
    ]
    assert [trial.spec.host for trial in store.trial_outlines("job-1")] == [
        "elsewhere",
        "elsewhere",
    ]


def test_a_store_from_before_hosts_were_decided_about_is_read_as_it_was_meant(
    tmp_path: Path,
) -> None:
    """Made by the first migration alone: its jobs have no priority, and their trials stay where the
    plan put them.
    """
    old = tmp_path / "old.sqlite3"
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    engine = create_engine(f"sqlite:///{old}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        spec = to_json(SPECS[0], trial_pb2.TrialSpec())
        connection.execute(
            text(
                "insert into jobs values ('job-1', 'job', 'name: job', 'job.yaml', 5, 'simulated', 20.0, 60.0, false)"
            )
        )
        row = {"id": SPECS[0].trial_id, "spec": spec}
        connection.execute(
            text("insert into trials values (:id, 'job-1', 1, 'v1', 'here', 1, :spec)"), row
        )
    engine.dispose()
    store = Store.open(str(old))
    (job,), trials = store.jobs(), store.trials("job-1")
    assert (job.priority, HostChoice.from_json(job.placement)) == (0, HostChoice())
    assert waiting_job_of("job-1", trials).pinned == {"here": trials}
    store.close()


def test_a_job_stored_before_its_settings_were_stored_is_kept_without_them(
    store: Store, address: str
) -> None:
    store.add_job(
        replace(JOB, job_id="job-2", resolved="{}"),
        [replace(SPECS[0], trial_id="other", job_id="job-2")],
    )
    store.close()
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    engine = database.connect(address)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0003")
    engine.dispose()
    newer = Store.open(address)
    assert newer.jobs() == [JOB, replace(JOB, job_id="job-2")]
    assert [trial.spec for trial in newer.trials("job-1")] == SPECS
    newer.close()


def test_a_job_is_found_by_a_unique_start_of_its_id(store: Store) -> None:
    assert store.find_job("job").job_id == "job-1"
    store.add_job(
        replace(JOB, job_id="job-2"), [replace(SPECS[0], trial_id="other", job_id="job-2")]
    )
    assert store.find_job("job-2").job_id == "job-2"
    with pytest.raises(ConfigError, match=r"several job ids begin with .*: job-1, job-2"):
        store.find_job("job")
    with pytest.raises(ConfigError, match="there is no job 'j%'"):
        store.find_job("j%")


def test_a_second_controller_is_refused_until_the_first_lets_go(address: str) -> None:
    with (
        hold_writer_lock(address),
        pytest.raises(Conflict, match="another"),
        hold_writer_lock(address),
    ):
        pass
    with hold_writer_lock(address):
        Store.open(address).close()


def test_a_message_with_a_nul_is_stored_without_it(store: Store) -> None:
    store.record_event(
        "agent",
        "here",
        told(1, ev.TrialOver(Outcome.FAILED, ErrorKind.SERVER_EXITED, "c", "a\0b"), Phase.OVER),
    )
    (attempt,) = store.find_trial(SPECS[0].trial_id).attempts
    assert attempt.message == "a\N{REPLACEMENT CHARACTER}b"


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    path = str(tmp_path / "100 % of #1?" / "store.sqlite3")
    store = Store.open(path)
    store.add_job(JOB, SPECS)
    store.close()
    reader = Store.open(path, read_only=True)
    assert reader.jobs() == [JOB]
    reader.close()


def test_a_url_of_sqlite_is_the_same_as_its_path(tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path}/store.sqlite3").close()
    store = Store.open(str(tmp_path / "store.sqlite3"), read_only=True)
    assert store.jobs() == []
    store.close()
    assert stat.S_IMODE((tmp_path / "store.sqlite3").stat().st_mode) == 0o600


def test_a_full_disk_is_told_and_loses_no_event(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store.sqlite3"))
    store.add_job(JOB, SPECS)
    with store.engine.connect() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()
    event = told(1, ev.ServerFailed(message="x" * 100_000))
    limit_pages(store, int(pages or 0))
    with pytest.raises(Conflict, match=r"the store cannot be used: .*full"):
        store.record_event("agent", "here", event)
    limit_pages(store, 1 << 20)
    assert store.record_event("agent", "here", event) is not None
    assert store.events(SPECS[0].trial_id, 1) == [event]
    store.close()


def limit_pages(store: Store, pages: int) -> None:
    """As if the disk held no more; the pool hands out the same connection again."""
    with store.engine.connect() as connection:
        connection.exec_driver_sql(f"pragma max_page_count={pages}")


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    Store.open(str(tmp_path / "store.sqlite3")).close()
    assert stat.S_IMODE((tmp_path / "store.sqlite3").stat().st_mode) == 0o600


def test_a_store_that_is_not_there_is_told_to_a_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no store at"):
        Store.open(str(tmp_path / "none.sqlite3"), read_only=True)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite3")
    Store.open(path).close()
    reader = Store.open(path, read_only=True)
    with pytest.raises(Exception, match=r"readonly|read-only"):
        reader.add_job(JOB, SPECS)
    reader.close()


def test_a_file_that_is_no_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite3").write_text("this is a letter to my aunt, not a database\n" * 40)
    with pytest.raises(StoreLost, match="is damaged: file is not a database"):
        Store.open(str(tmp_path / "store.sqlite3"))


def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite3")
    store = Store.open(path)
    store.close()
    engine = database.connect(path)
    with engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '9999'")
    engine.dispose()
    with pytest.raises(
        Exception, match="revision 9999, which this version of benchfleet does not know"
    ):
        Store.open(path)
