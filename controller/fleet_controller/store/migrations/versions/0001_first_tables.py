"""Creates the first tables: jobs, trials, attempts, events, runs, agents, artifacts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(128), primary_key=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("yaml", sa.Text, nullable=False),
        sa.Column("file_name", sa.Text, nullable=False),
        sa.Column("submitted_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("engine", sa.String(32), nullable=False),
        sa.Column("time_scale", sa.Float, nullable=False),
        sa.Column("planned_s", sa.Float, nullable=False),
        sa.Column("cancelled", sa.Boolean, nullable=False),
    )
    op.create_table(
        "trials",
        sa.Column("trial_id", sa.String(255), primary_key=True),
        sa.Column("job_id", sa.String(128), sa.ForeignKey("jobs.job_id"), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("variant", sa.Text, nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("block", sa.Integer, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
    )
    op.create_index("trials_of_job", "trials", ["job_id", "position"])
    op.create_table(
        "attempts",
        sa.Column("trial_id", sa.String(255), sa.ForeignKey("trials.trial_id"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("agent_id", sa.String(64), nullable=False),
        sa.Column("phase", sa.Integer, nullable=False),
        sa.Column("outcome", sa.Integer, nullable=False),
        sa.Column("kind", sa.Integer, nullable=False),
        sa.Column("failure_class", sa.String(128), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("started_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("ended_unix_ns", sa.BigInteger, nullable=False),
    )
    _results()


def _results() -> None:
    op.create_table(
        "events",
        sa.Column("agent_id", sa.String(64), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True),
        sa.Column("trial_id", sa.String(255), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
    )
    op.create_index("events_of_attempt", "events", ["trial_id", "attempt"])
    op.create_table(
        "runs",
        sa.Column("trial_id", sa.String(255), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("workload", sa.String(255), primary_key=True),
        sa.Column("run_index", sa.Integer, primary_key=True),
        sa.Column("run", sa.Text, nullable=False),
    )
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.String(64), primary_key=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("last_sequence", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("name", sa.String(512), primary_key=True),
        sa.Column("trial_id", sa.String(255), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("agent_id", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("fetched", sa.Boolean, nullable=False),
    )
    op.create_index("artifacts_of_attempt", "artifacts", ["trial_id", "attempt"])


def downgrade() -> None:
    """Drop all tables."""
    for table in ("artifacts", "agents", "runs", "events", "attempts", "trials", "jobs"):
        op.drop_table(table)
