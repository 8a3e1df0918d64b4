"""Defines the tables of the store. Their history is in `migrations`. JSON is stored as text, so
that every database can read it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", String(128), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("yaml", Text, nullable=False),
    # the job that the text was read as, see `job_file.resolved_job`; empty: stored before 0004
    Column("resolved", Text, nullable=False, server_default=""),
    Column("file_name", Text, nullable=False),
    Column("submitted_unix_ns", BigInteger, nullable=False),
    Column("engine", String(32), nullable=False),
    Column("time_scale", Float, nullable=False),
    Column("planned_s", Float, nullable=False),
    Column("cancelled", Boolean, nullable=False),
    Column("priority", Integer, nullable=False, server_default="0"),
    # JSON of HostChoice; empty: each trial stays on the host of its plan
    Column("placement", Text, nullable=False, server_default=""),
    Column("joined_s", Float, nullable=False, server_default="0"),
)

trials = Table(
    "trials",
    metadata,
    Column("trial_id", String(255), primary_key=True),
    Column("job_id", String(128), ForeignKey("jobs.job_id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("variant", Text, nullable=False),
    Column("host", String(255), nullable=False),
    Column("block", Integer, nullable=False),
    Column("spec", Text, nullable=False),
    Index("trials_of_job", "job_id", "position"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("trial_id", String(255), ForeignKey("trials.trial_id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("agent_id", String(64), nullable=False),
    Column("phase", Integer, nullable=False),
    Column("outcome", Integer, nullable=False),
    Column("kind", Integer, nullable=False),
    Column("failure_class", String(128), nullable=False),
    Column("message", Text, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("started_unix_ns", BigInteger, nullable=False),
    Column("ended_unix_ns", BigInteger, nullable=False),
)

# Append-only: every event that an agent reported, once.
events = Table(
    "events",
    metadata,
    Column("agent_id", String(64), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("trial_id", String(255), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("event", Text, nullable=False),
    Index("events_of_attempt", "trial_id", "attempt"),
)

# Append-only: a run that is measured again is a new row, with another attempt.
runs = Table(
    "runs",
    metadata,
    Column("trial_id", String(255), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("workload", String(255), primary_key=True),
    Column("run_index", Integer, primary_key=True),
    Column("run", Text, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("agent_id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("name", String(512), primary_key=True),
    Column("trial_id", String(255), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("agent_id", String(64), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("fetched", Boolean, nullable=False),
    Index("artifacts_of_attempt", "trial_id", "attempt"),
)

# What the controller decided about a host. A host without a row gets trials. `failures` is JSON of
# `core.quarantine.HostFailure`.
hosts = Table(
    "hosts",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("drained", Boolean, nullable=False),
    Column("drain_reason", Text, nullable=False),
    Column("aside", Text, nullable=False),
    Column("aside_since_unix_ns", BigInteger, nullable=False),
    Column("setbacks", Integer, nullable=False),
    Column("failures", Text, nullable=False),
)

# One row: the controller that uses the store. Each start raises the epoch, and a transaction of an
# earlier start is refused.
controller = Table(
    "controller",
    metadata,
    Column("row", Integer, primary_key=True),
    Column("controller_id", String(64), nullable=False),
    Column("epoch", BigInteger, nullable=False),
)

# The key that a client chose for a submit, so that a repeated submit does not make a second job.
submissions = Table(
    "submissions",
    metadata,
    Column("request_key", String(64), primary_key=True),
    Column("job_id", String(128), ForeignKey("jobs.job_id"), nullable=False),
)
